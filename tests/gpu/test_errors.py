"""An error on one rank is reported to every rank with the same text; the engine continues if possible, the device always."""

from __future__ import annotations

import signal

import pytest
from hvdtest.launch import RankPool
from hvdtest.pools import layout_id

NATIVE = [(2, "ring"), (2, "core")]
ON_TWO = pytest.mark.parametrize("layout", NATIVE, ids=layout_id)
ON_TWO_AND_FOUR = pytest.mark.parametrize("layout", [*NATIVE, (4, "ring"), (4, "core")], ids=layout_id)


def here_and_there() -> list[str]:
    """One rank passes a host tensor where the others pass one of a GPU."""
    import torch
    from hvdtest.exact import raises
    from hvdtest.gpu import alike, here, there

    import hvd_kernel.torch as hvd
    from hvd_kernel.errors import Mismatch

    rank, size = hvd.rank(), hvd.size()
    x = torch.full((1000,), rank + 1.0)
    said = []
    for name, call in (("allreduce", hvd.allreduce), ("allgather", hvd.allgather)):
        error = raises(Mismatch, "", call, x if rank == 1 else there(x), name=f"mixed.{name}")
        said.append(str(error))
        want = torch.full((1000,), size * (size + 1) / 2)
        alike(here(hvd.allreduce(there(x), name=f"next.{name}", op=hvd.Sum)), want, "the next one")
    raises(ValueError, "", hvd.grouped_allreduce, [x, there(x)], name="both")
    alike(here(hvd.allreduce(there(x), name="last", op=hvd.Sum)), want, "the last one")
    return said


@ON_TWO
def test_host_and_gpu_tensors_mismatch_on_every_rank(ranks: RankPool) -> None:
    said = ranks.run(here_and_there)
    assert all(each == said[0] for each in said)
    assert all("GPU" in text or "device" in text for text in said[0]), said


def too_much() -> list[object]:
    """Gather more than fits: each rank holds a share of the free memory, and no rank has room for all shares."""
    import gc

    import torch
    from hvdtest.exact import raises
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd
    from hvd_kernel.errors import OutOfMemory

    rank, size, where = hvd.rank(), hvd.size(), device()
    met = hvd.allreduce(torch.ones(100_000, device=where), name="meet", op=hvd.Sum)
    assert met.unique().tolist() == [size]  # torch loads these kernels now, not between the two looks at the memory
    del met
    torch.cuda.synchronize(where)
    hvd.barrier()
    free = torch.cuda.mem_get_info(where)[0]
    hvd.barrier()
    part = torch.empty(free // (size + 1), dtype=torch.uint8, device=where)
    hvd.barrier()
    error = raises(OutOfMemory, "", hvd.allgather, part, name="x")
    said = [error.rank, str(error)]
    del part, error  # whose traceback has the part too
    gc.collect()
    torch.cuda.empty_cache()
    hvd.barrier()
    total = hvd.allreduce(torch.full((100_000,), rank + 1.0, device=where), name="next", op=hvd.Sum)
    assert total.unique().tolist() == [size * (size + 1) / 2]
    hvd.barrier()
    lost = free - torch.cuda.mem_get_info(where)[0]
    assert lost < 256 << 20, f"{lost >> 20} MiB have not come back"
    hvd.barrier()
    return said


@ON_TWO
def test_out_of_device_memory_is_one_error_on_all_ranks(ranks: RankPool) -> None:
    said = ranks.run(too_much)
    assert all(each == said[0] for each in said), said
    assert "memory" in said[0][1]


def killed_with_handles_open(victim: int) -> list[object]:
    """The victim dies with operations in flight; the others get the error, and their device continues to work."""
    import os
    import signal

    import torch
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd
    from hvd_kernel.errors import RankDied

    rank, where = hvd.rank(), device()
    x = torch.ones(8 << 20, device=where)
    hvd.allreduce_(x, name="meet", op=hvd.Average)
    torch.cuda.synchronize(where)
    hvd.barrier()
    mine = [i for i in range(6) if rank != victim or i < 3]  # the last three never meet
    handles = [hvd.allreduce_async(x, name=f"k{i}", op=hvd.Average) for i in mine]
    if rank == victim:
        hvd.synchronize(handles[0])  # requested by all ranks: none is in the barrier any more
        os.kill(os.getpid(), signal.SIGKILL)
    heard = []
    for handle in handles:
        try:
            hvd.synchronize(handle)
        except RankDied as error:
            heard.append(error.rank)
    assert heard[-3:] == [victim] * 3
    torch.cuda.synchronize(where)  # nothing stands in the device's queues
    assert (x + 1).sum().item() == 2.0 * (8 << 20), "the device was not reset"
    return heard[-3:]


@ON_TWO_AND_FOUR
def test_killed_rank_leaves_no_queue_blocked(ranks: RankPool) -> None:
    ranks.broken = True  # one is lost
    found = ranks.run(killed_with_handles_open, 1, gone={1: -signal.SIGKILL})
    assert [each for rank, each in enumerate(found) if rank != 1] == [[1, 1, 1]] * (ranks.np - 1)


def ended_while_others_go_on() -> float:
    """A rank that raises releases the others, who can compute."""
    import time

    import torch
    from hvdtest.exact import raises
    from hvdtest.gpu import device

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session
    from hvd_kernel.errors import RankFailed

    x = torch.ones(1 << 20, device=device())
    hvd.allreduce_(x, name="meet", op=hvd.Average)
    if hvd.rank() == 0:
        while not any(each["name"] == "allreduce.alone" for each in session.engine().pending()):
            time.sleep(0.001)  # until then the other one may still be in what came before
        session.engine().abort("ValueError: my bug")
        return 0.0
    raises(RankFailed, "my bug", hvd.allreduce_, x, name="alone", op=hvd.Sum)
    return float((x + 1).sum().item())


@ON_TWO
def test_abort_releases_ranks_waiting_with_device_tensors(ranks: RankPool) -> None:
    ranks.broken = True
    assert ranks.run(ended_while_others_go_on) == [0.0, 2.0 * (1 << 20)]
