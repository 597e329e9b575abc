"""join: ranks with fewer batches take part without data until all ranks have joined."""

from __future__ import annotations

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp


layout = layouts((2, "shm"), (3, "tcp"), nightly=((1, "auto"), (2, "tcp"), (3, "shm"), (4, "shm"), (4, "tcp")))


def at_once() -> list[int]:
    return [hvd.join(), hvd.join(device=0)]


def test_join_of_all_ranks_at_once(ranks: RankPool) -> None:
    found = ranks.run(at_once)
    assert all(each == found[0] for each in found), "every rank hears the same"
    assert all(0 <= last < ranks.np for last in found[0])


def unequal() -> int:
    """Rank r has r + 1 batches."""
    rank, size = hvd.rank(), hvd.size()
    for batch in range(rank + 1):
        here = [r for r in range(size) if r >= batch]  # ranks that still have one
        for dtype in (torch.float32, torch.int32, torch.bfloat16):
            x = torch.full((5,), rank + 1).to(dtype)
            present = torch.stack([torch.full((5,), r + 1).to(dtype) for r in here])
            name = f"{batch}.{dtype}"
            same(hvd.allreduce(x, name=f"s{name}", op=hvd.Sum), present.sum(0).to(dtype), "sum")
            same(hvd.allreduce(-x, name=f"m{name}", op=hvd.Max), (-present).amax(0), "max")
            same(hvd.allreduce(x, name=f"n{name}", op=hvd.Min), present.amin(0), "min")
            same(hvd.allreduce(x, name=f"p{name}", op=hvd.Product), present.prod(0).to(dtype), "product")
        mean = hvd.allreduce(torch.full((5,), rank + 1.0), name="mean")  # the same name again and again: cached
        same(mean, torch.full((5,), float(sum(r + 1 for r in here))) / size, "the mean is over all ranks")
        whole = hvd.allreduce(torch.full((5,), 255, dtype=torch.uint8), name="whole")
        same(whole, torch.full((5,), 255 * len(here) // size, dtype=torch.uint8), "exact, though the sum does not fit")
        group = hvd.grouped_allreduce([torch.ones(2), torch.full((3,), rank)], name="group", op=hvd.Sum)
        same(group[0], torch.full((2,), float(len(here))))
        same(group[1], torch.full((3,), sum(here)))
    return hvd.join()


def test_unequal_batches(ranks: RankPool) -> None:
    found = ranks.run(unequal)
    assert found == [ranks.np - 1] * ranks.np
    assert ranks.run(unequal) == found, "it can be used again"


def refused() -> None:
    from hvd_kernel.errors import Mismatch

    rank, size = hvd.rank(), hvd.size()
    if size == 1:
        return
    if rank == 0:
        assert hvd.join() == size - 1
        return
    x = torch.ones(size * 2, 2)
    hvd.allreduce(x, name="after rank 0 has joined", op=hvd.Sum)
    cases = {
        "Allgather is not supported with Join at this time.": lambda n: hvd.allgather(x, n),
        "Broadcast is not supported with Join at this time.": lambda n: hvd.broadcast(x, 1, n),
        "Alltoall is not supported with Join at this time.": lambda n: hvd.alltoall(x, name=n),
        "Reducescatter is not supported with Join at this time.": lambda n: hvd.reducescatter(x, n),
    }
    for number, (text, call) in enumerate(cases.items()):
        raises(Mismatch, text, call, f"refused{number}")
    same(hvd.allreduce(x, name="still joined", op=hvd.Sum), x * (size - 1))
    if rank == size - 1:  # done when the others have joined
        same(hvd.allreduce(x, name="alone", op=hvd.Sum), x)
    assert hvd.join() == size - 1


def test_operations_that_join_refuses(ranks: RankPool) -> None:
    ranks.run(refused)
