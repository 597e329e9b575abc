"""Order on the device: streams, memory that torch gives away early, CUDA graphs, two devices in turn."""

from __future__ import annotations

import pytest
from hvdtest.launch import RankPool


def behind_slow_work() -> None:
    """Work queued before the operation is awaited, and work queued after it waits: the host does neither."""
    import torch
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd

    size, where = hvd.size(), device()
    for side in (torch.cuda.current_stream(where), torch.cuda.Stream(where)):
        with torch.cuda.device(where), torch.cuda.stream(side):
            x = torch.zeros(1 << 20, device=where)
            torch.cuda._sleep(50_000_000)
            x.fill_(hvd.rank() + 1)
            handle = hvd.allreduce_async_(x, name="slow", op=hvd.Sum)
            hvd.synchronize(handle)
            y = x * 2
            assert y.unique().tolist() == [float(size * (size + 1))]
    hvd.barrier()


def memory_in_use() -> None:
    """A tensor referenced only by the handle keeps its memory; so does one whose handle completes on another stream."""
    import torch
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd

    size, where = hvd.size(), device()
    side = torch.cuda.Stream(where)
    for i in range(50):
        with torch.cuda.device(where):
            handle = hvd.allreduce_async(torch.full((100_000,), float(i), device=where), name=f"m{i}", op=hvd.Sum)
            torch.full((100_000,), -1.0, device=where)  # what would get the memory
            with torch.cuda.stream(side):
                out = hvd.synchronize(handle)
                total = out.sum()
            del out
            torch.full((100_000,), -1.0, device=where)
            side.synchronize()
            assert total.item() == 100_000.0 * i * size
    hvd.barrier()


def steps_on_streams() -> None:
    """Gradients in shared memory, in steps on one stream and then another: each waits for its own stream's work."""
    import gc

    import torch
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd
    from hvd_kernel.core.shared_memory import release_shared

    rank, size, where = hvd.rank(), hvd.size(), device()
    params = [torch.nn.Parameter(torch.zeros(n, device=where)) for n in (70_001, 3)]
    named = [(f"streams.p{number}", param) for number, param in enumerate(params)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), named_parameters=named, op=hvd.Sum)
    torch.cuda.synchronize()
    sides = [torch.cuda.Stream(where), torch.cuda.Stream(where)]
    for step in range(6):
        with torch.cuda.device(where), torch.cuda.stream(sides[step // 2 % 2]):
            optimizer.zero_grad()
            torch.cuda._sleep(20_000_000)
            (sum(param.sum() for param in params) * (rank + step)).backward()
            optimizer.synchronize()
            want = float(sum(other + step for other in range(size)))
            assert [param.grad.unique().tolist() for param in params] == [[want]] * 2, f"step {step}"
    del optimizer, params, named
    gc.collect()
    release_shared()


def test_streams(ranks: RankPool) -> None:
    ranks.run(behind_slow_work)
    ranks.run(memory_in_use)
    ranks.run(steps_on_streams)


def replayed() -> None:
    """A captured step, its collective within it, replays with new numbers."""
    import torch
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd

    rank, size, where = hvd.rank(), hvd.size(), device()
    torch.cuda.set_device(where)
    x = torch.zeros(70_001, device=where)
    hvd.allreduce_(x, name="g", op=hvd.Sum)  # the team meets, which cannot be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        hvd.allreduce_(y, name="g", op=hvd.Sum)
        z = y * 2
    for i in range(5):
        x.fill_(rank + i)
        graph.replay()
        want = 2.0 * sum(r + i + 1 for r in range(size))
        assert z.unique().tolist() == [want], f"replay {i}: {z.unique().tolist()[:4]} instead of {want}"
    hvd.barrier()


def test_a_captured_step_replays_with_its_collective(layout: tuple[int, str], ranks: RankPool) -> None:
    if layout[1] not in {"ring", "nccl"}:
        pytest.skip("what is staged waits for the host, which a graph cannot")
    ranks.run(replayed)


def two_devices() -> None:
    """Two devices of one process in turn, without waiting between them."""
    import torch

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    handles = []
    for i in range(40):
        where = torch.device("cuda", (rank + i) % 2)
        handles.append(
            hvd.allreduce_async(torch.full((1001,), float(rank + i), device=where), name=f"d{i}", op=hvd.Sum)
        )
    for i, handle in enumerate(handles):
        out = hvd.synchronize(handle)
        assert out.device.index == (rank + i) % 2
        assert out.unique().tolist() == [float(sum(r + i for r in range(size)))]


def test_two_devices_in_one_process(ranks: RankPool) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("there is one device")
    ranks.run(two_devices)
