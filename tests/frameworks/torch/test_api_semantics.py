"""Easily missed semantics of Horovod's API: handles, names, shapes, types, and values that its own tests omit."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), nightly=((1, "auto"), (3, "tcp")))


def handles() -> None:
    size = hvd.size()
    one = hvd.allreduce_async(torch.ones(2), name="one", op=hvd.Sum)
    same(hvd.synchronize(one), torch.full((2,), float(size)))
    assert hvd.synchronize(one) is None, "it was waited for already"
    assert hvd.synchronize(10**9) is None
    for handle in (one, 10**9):
        raises(ValueError, f"Handle {handle} was not created or has been cleared.", hvd.poll, handle)
    x = torch.arange(size)
    output, received = hvd.synchronize(hvd.alltoall_async(x, name="pair"))
    same(output, torch.full((size,), hvd.rank()))
    same(received, torch.ones(size, dtype=torch.int32))
    same(hvd.alltoall(x, name="alone"), output)
    both = hvd.alltoall(x, torch.ones(size, dtype=torch.int32), name="both")
    assert isinstance(both, tuple)
    same(both[1], received)
    group = hvd.synchronize(hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2)], name="group", op=hvd.Sum))
    assert isinstance(group, tuple)
    for function in (hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allgather):
        assert isinstance(function([torch.ones(1), torch.ones(2).int()], name="list"), list)
    assert isinstance(hvd.grouped_reducescatter([torch.ones(size)], name="list"), list)
    x = torch.ones(3)
    assert hvd.allreduce_(x, name="place") is x
    assert hvd.broadcast_(x, 0, name="place") is x
    assert hvd.synchronize(hvd.allreduce_async_(x, name="place")) is x


def test_handles(ranks: RankPool) -> None:
    ranks.run(handles)


def names() -> list[int]:
    """A name in flight is refused at once; a barrier passes it; unnamed ones count every call, also one that fails."""
    rank, size = hvd.rank(), hvd.size()
    hvd.barrier()
    if rank == 0:
        first = hvd.allreduce_async(torch.ones(1), name="twice", op=hvd.Sum)
        if size > 1:
            text = "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor"
            raises(ValueError, text, hvd.allreduce_async, torch.ones(1), name="twice")
    hvd.barrier()
    if rank:
        first = hvd.allreduce_async(torch.ones(1), name="twice", op=hvd.Sum)
    same(hvd.synchronize(first), torch.full((1,), float(size)))
    if rank or size == 1:  # one failed call everywhere by now: the numbers are in step
        text = "Number of entries in splits does not equal number of workers."
        raises(ValueError, text, hvd.alltoall, torch.ones(1), torch.ones(size + 1, dtype=torch.int32))
    for number in range(3):
        same(hvd.allreduce(torch.full((2,), float(rank * number)), op=hvd.Max), torch.full((2,), (size - 1.0) * number))
        hvd.barrier()
        same(hvd.allgather(torch.tensor([rank])), torch.arange(size))
    numbers = []
    for _ in range(2):
        hvd.shutdown()
        hvd.init()
        numbers.append(hvd.allreduce_async(torch.ones(1), name="abandoned"))
    hvd.shutdown()  # does not wait for an answer without a request
    hvd.init()
    return numbers


def test_names(ranks: RankPool) -> None:
    found = ranks.run(names)
    assert all(one == found[0] for one in found), "handles are numbered alike on all ranks"
    assert len(set(found[0])) == 1, "and from the start after shutdown"


def compressed() -> None:
    rank, size = hvd.rank(), hvd.size()
    whole = size * (size + 1) / 2
    x = torch.full((3,), 1.0 + 2.0**-12) * (rank + 1)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        got = hvd.grouped_allreduce([x, x.int()], name="narrow group", compression=compression, op=hvd.Sum)
        same(got[0], torch.full((3,), whole), "the small part is lost on the way")
        same(got[1], torch.full((3,), int(whole), dtype=torch.int32))
        rows = hvd.reducescatter(x.repeat(size), name="narrow rows", compression=compression, op=hvd.Sum)
        same(rows, torch.full((3,), whole))
    assert hvd.allreduce(torch.full((1,), 1e30), name="wide", compression=hvd.Compression.bf16).isfinite().all()


def test_compressed_groups_and_rows(ranks: RankPool) -> None:
    ranks.run(compressed)


def side_by_side() -> None:
    """Operations that could travel together keep their own factor, operator and type; ranks start them in any order."""
    import random

    rank, size = hvd.rank(), hvd.size()
    whole = size * (size + 1) // 2
    factorial = [1, 1, 2, 6, 24][size]
    cases = []
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        x = torch.full((5,), rank + 1).to(dtype)
        for op, want in ((hvd.Sum, whole), (hvd.Min, 1), (hvd.Max, size), (hvd.Product, factorial)):
            cases.append((x, {"op": op}, want))
        if dtype != torch.int64:
            cases += [(x, {"op": hvd.Sum, "prescale_factor": 2.0}, 2 * whole)]
            cases += [(x, {"op": hvd.Sum, "postscale_factor": 0.5}, whole / 2)]
    order = list(range(len(cases)))
    random.Random(rank).shuffle(order)
    started = {i: hvd.allreduce_async(cases[i][0], name=f"case{i}", **cases[i][1]) for i in order}
    for i, (x, how, want) in enumerate(cases):
        same(hvd.synchronize(started[i]), torch.full((5,), want).to(x.dtype), (x.dtype, how))


def test_side_by_side(ranks: RankPool) -> None:
    ranks.run(side_by_side)


def objects() -> None:
    """Default names depend on the type of each rank's object, so ranks with other types must pass one."""
    rank, size = hvd.rank(), hvd.size()
    mine = {"rank": rank} if rank == 0 else [rank]
    assert hvd.broadcast_object(mine, 0, name="named") == {"rank": 0}
    assert hvd.broadcast_object((rank, "x"), size - 1) == (size - 1, "x")


def test_objects(ranks: RankPool) -> None:
    ranks.run(objects)
