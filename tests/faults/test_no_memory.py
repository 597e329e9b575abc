"""No memory for a result on one rank: the same error on every rank, and the next operation is right."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hvdtest.launch import RankPool
from hvdtest.pools import layouts

pytestmark = pytest.mark.mp

OUTPUT = 512 << 20  # bytes, of all ranks together
ROOM = 128 << 20  # what the lacking rank may still take: enough for everything but the output


layout = layouts((2, "shm"), nightly=((3, "tcp"),))


def refused(kind: str, lacking: int) -> list[object]:
    """Gather what one rank has no memory for; return the error of this rank, and the next sum."""
    import torch

    import hvd_kernel.torch as hvd

    size = hvd.size()
    rows = OUTPUT // size // 1024
    part = torch.full((rows, 1024), hvd.rank() + 1, dtype=torch.uint8)
    splits = torch.tensor([rows if rank == lacking else 0 for rank in range(size)], dtype=torch.int32)
    calls = {
        "allgather": lambda: hvd.allgather(part, name="x"),
        "alltoall": lambda: hvd.alltoall(part, splits, name="x"),
    }
    before = resource.getrlimit(resource.RLIMIT_AS)
    if hvd.rank() == lacking:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    try:
        calls[kind]()
    except hvd.HorovodInternalError as error:
        told = [type(error).__name__, error.rank, str(error)]
    else:
        raise AssertionError("the result fits")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return [told, hvd.allreduce(torch.full((100_000,), hvd.rank() + 1.0), name="next", op=hvd.Sum).unique().tolist()]


def gathered() -> list[list[int]]:
    """Gather more than a mebibyte, for which there is room: each rank's rows hold its number."""
    import torch

    import hvd_kernel.torch as hvd

    rows = hvd.allgather(torch.full((1 << 20,), hvd.rank() + 1, dtype=torch.uint8), name="x")
    return [part.unique().tolist() for part in rows.split(1 << 20)]


@pytest.mark.parametrize("kind", ["allgather", "alltoall"])
@pytest.mark.parametrize("lacking", [0, 1])
def test_no_memory(ranks: RankPool, kind: str, lacking: int) -> None:
    size = ranks.np
    found = ranks.run(refused, kind, lacking)
    said = f"rank {lacking} has no memory for the 536.9 MB output of {kind} 'x'"
    for told, total in found:
        assert told == found[0][0]
        assert told[:2] == ["OutOfMemory", lacking]
        assert said in told[2]
        assert total == [size * (size + 1) / 2]
    assert ranks.run(gathered) == [[[rank + 1] for rank in range(size)]] * size
