"""Collectives on tensors of a GPU: the very bytes that the same call gives on the host, for every type and operation."""

from __future__ import annotations

from hvdtest.launch import RankPool


def reductions(op: str) -> int:
    """Every type that the operation is defined for, at sizes around vectors and slices, in one go."""
    import torch
    from hvdtest.cases import FLOATS, REDUCED, numbers, reducible, torch_of
    from hvdtest.gpu import alike, here, there

    import hvd_kernel.torch as hvd

    how = {"op": getattr(hvd, op), "prescale_factor": 1.0, "postscale_factor": 1.0}
    wanted, handles = {}, {}
    for dtype in (d for d in REDUCED if reducible(d, op)):
        for shape in ((), (0,), (1,), (7,), (3, 5), (1000,), (100_003,)):
            x = torch_of(numbers(shape, hvd.rank(), dtype, op), dtype)
            if dtype in FLOATS and op != "Product":  # any numbers: the order of the sum shows in the last bit
                x = torch.randn(shape, generator=torch.Generator().manual_seed(hvd.rank())).to(x.dtype)
            name = f"{op}.{dtype}.{shape}"
            wanted[name] = hvd.allreduce(x, name=f"host.{name}", **how)
            handles[name] = hvd.allreduce_async(there(x), name=name, **how)
    for name, handle in handles.items():
        alike(here(hvd.synchronize(handle)), wanted[name], name)
    return len(handles)


def test_every_type_and_operation(ranks: RankPool) -> None:
    for op in ("Average", "Sum", "Min", "Max", "Product"):
        assert set(ranks.run(reductions, op, timeout=120.0)) == {
            91 - 7 * (op == "Average") - 14 * (op in {"Min", "Max"})
        }


def scaled_and_in_place() -> None:
    """Scales before and after; in place; views that begin at odd elements; tensors that must be copied to be contiguous."""
    import torch
    from hvdtest.gpu import alike, device, here, there

    import hvd_kernel.torch as hvd

    rank = hvd.rank()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int32):
        x = (torch.arange(10_007) % 97 + rank + 1).to(dtype)
        how = {"op": hvd.Sum, "prescale_factor": 0.3, "postscale_factor": 1.7}
        if dtype is torch.int32:
            how = {"op": hvd.Sum}
        for begin in (0, 1, 3):
            want = hvd.allreduce(x[begin:], name=f"host.{dtype}.{begin}", **how)
            mine = there(x)[begin:]
            assert hvd.allreduce_(mine, name=f"{dtype}.{begin}", **how) is mine
            alike(here(mine), want, f"{dtype} from {begin}")
    grid = (torch.arange(60.0) + rank).view(6, 10)
    mine = there(grid)
    want = hvd.allreduce(grid.t()[2:7], name="host.t", op=hvd.Sum)
    assert hvd.allreduce_(mine.t()[2:7], name="t", op=hvd.Sum).device == device()
    alike(here(mine.t()[2:7]), want, "a transposed view, in place")
    alike(here(mine.t()[:2]), grid.t()[:2], "and nothing beside it")


def test_scales_views_and_in_place(ranks: RankPool) -> None:
    ranks.run(scaled_and_in_place)


def moves() -> None:
    """Broadcast from every root, rows of unequal number, exchange, and shares of a sum; every type."""
    import torch
    from hvdtest.cases import MOVED, REDUCED, numbers, torch_of
    from hvdtest.gpu import alike, device, here, there

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    for dtype in (*REDUCED, *MOVED):
        rows = torch_of(numbers((rank * 3 + 1, 5), rank, dtype), dtype)
        alike(here(hvd.allgather(there(rows), name=f"a.{dtype}")), hvd.allgather(rows, name=f"ha.{dtype}"), dtype)
        for root in range(size):
            alike(
                here(hvd.broadcast(there(rows[:1]), root, name=f"b.{dtype}.{root}")),
                torch_of(numbers((root * 3 + 1, 5), root, dtype), dtype)[:1],
                f"{dtype} from {root}",
            )
        splits = torch.tensor([(rank + other) % 3 for other in range(size)], dtype=torch.int32)
        sent = torch_of(numbers((int(splits.sum()), 2), rank, dtype), dtype)
        got, received = hvd.alltoall(there(sent), splits, name=f"x.{dtype}")
        want, counted = hvd.alltoall(sent, splits, name=f"hx.{dtype}")
        alike((here(got), received), (want, counted), f"alltoall {dtype}")
        assert got.device == device()
    for count in (size, 2 * size + 1, 1):
        x = torch.randn(count, 1001, generator=torch.Generator().manual_seed(rank))
        want = hvd.reducescatter(x, name=f"hr.{count}", op=hvd.Average)
        alike(here(hvd.reducescatter(there(x), name=f"r.{count}", op=hvd.Average)), want, f"{count} rows")


def test_moves(ranks: RankPool) -> None:
    ranks.run(moves, timeout=120.0)


def groups() -> None:
    """Several tensors as one operation, mixed types; hundreds of small ones in flight, begun in another order everywhere."""
    import numpy as np
    import torch
    from hvdtest.gpu import alike, here, there

    import hvd_kernel.torch as hvd

    rank = hvd.rank()
    kinds = (torch.float32, torch.float16, torch.int64, torch.float32)
    parts = [(torch.arange(37 * (i + 1)) % 13 + rank).to(kind) for i, kind in enumerate(kinds)]
    want = hvd.grouped_allreduce(parts, name="hg", op=hvd.Sum)
    alike(here(hvd.grouped_allreduce([there(p) for p in parts], name="g", op=hvd.Sum)), want, "grouped")
    mine = [there(p) for p in parts]
    hvd.grouped_allreduce_(mine, name="gi", op=hvd.Sum)
    alike(here(mine), want, "grouped, in place")
    gathered = hvd.grouped_allgather([there(p) for p in parts], name="gg")
    alike(here(gathered), hvd.grouped_allgather(parts, name="hgg"), "grouped allgather")
    rows = [torch.randn(7, 3, generator=torch.Generator().manual_seed(rank)) for _ in range(3)]
    scattered = hvd.grouped_reducescatter([there(r) for r in rows], name="gr", op=hvd.Sum)
    alike(here(scattered), hvd.grouped_reducescatter(rows, name="hgr", op=hvd.Sum), "grouped reducescatter")
    small = [
        torch.randn(1 + 31 * i % 257, generator=torch.Generator().manual_seed(1000 * rank + i)) for i in range(300)
    ]
    sums = [hvd.synchronize(hvd.allreduce_async(s, name=f"hs{i}", op=hvd.Sum)) for i, s in enumerate(small)]
    order = np.random.default_rng(rank).permutation(len(small)).tolist()
    handles = {i: hvd.allreduce_async_(there(small[i]), name=f"s{i}", op=hvd.Sum) for i in order}
    for i, total in enumerate(sums):
        alike(here(hvd.synchronize(handles[i])), total, f"small {i}")


def test_groups_and_many_at_once(ranks: RankPool) -> None:
    ranks.run(groups, timeout=120.0)


def large() -> None:
    """More than the arena that peers map, in several rounds; host and device operations between each other."""
    import torch
    from hvdtest.gpu import alike, here, there

    import hvd_kernel.torch as hvd

    x = torch.randn((96 << 20) // 4 + 5, generator=torch.Generator().manual_seed(hvd.rank()))
    handles = [hvd.allreduce_async(there(x), name=f"large{i}", op=hvd.Sum) for i in range(2)]
    want = hvd.allreduce(x, name="host.large", op=hvd.Sum)
    for handle in handles:
        alike(here(hvd.synchronize(handle)), want, "large")


def test_more_than_the_arena(ranks: RankPool) -> None:
    ranks.run(large, timeout=120.0)


def subsets() -> None:
    """Process sets; and ranks that have joined."""
    import torch
    from hvdtest.gpu import alike, here, there

    import hvd_kernel.torch as hvd

    rank, size = hvd.rank(), hvd.size()
    some = hvd.global_process_set if size == 1 else hvd.add_process_set(list(range(0, size, 2)))
    if some.included():
        x = torch.randn(10_001, generator=torch.Generator().manual_seed(rank))
        want = hvd.allreduce(x, name="host.set", op=hvd.Average, process_set=some)
        alike(here(hvd.allreduce(there(x), name="set", op=hvd.Average, process_set=some)), want, "a set")
    hvd.barrier()
    assert size == 1 or hvd.remove_process_set(some)
    for batch in range(rank + 1):  # rank r has r + 1 batches
        here_still = [r for r in range(size) if r >= batch]
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            mine = there(torch.full((1001,), rank + 1).to(dtype))
            total = hvd.allreduce(mine, name=f"join.{batch}.{dtype}", op=hvd.Sum)
            alike(here(total), torch.full((1001,), sum(r + 1 for r in here_still)).to(dtype), f"batch {batch}")
    assert hvd.join(torch.cuda.current_device()) == size - 1


def test_process_sets_and_join(ranks: RankPool) -> None:
    ranks.run(subsets)
