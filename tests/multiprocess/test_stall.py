"""A rank that never calls: the others are told who it is, in which tensor, for how long, and get an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool
from hvdtest.pools import close_all

pytestmark = pytest.mark.mp


def absent(folder: str) -> dict[str, object]:
    import time

    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel import _session
    from hvd_kernel.errors import RankStalled

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    guilty = size - 1
    if rank != guilty:
        handle = hvd.allreduce_async(torch.ones(3), name="lonely", op=hvd.Sum)
        if rank == 0:
            deadline = time.monotonic() + 1
            while not (waits := [p for p in _session.engine().pending() if p["missing"] == [guilty]]):
                assert time.monotonic() < deadline, _session.engine().pending()
            assert waits[0]["name"] == "allreduce.lonely"
        began = time.monotonic()
        error = raises(RankStalled, f"rank {guilty}", hvd.synchronize, handle)
        assert error.rank == guilty
        assert "allreduce.lonely" in str(error)
        assert 1.5 < time.monotonic() - began < 6
        Path(folder, str(rank)).touch()
    deadline = time.monotonic() + 20
    while len(list(Path(folder).iterdir())) < size - 1:  # the guilty one must not be heard of before
        assert time.monotonic() < deadline
        time.sleep(0.01)
    same(hvd.allreduce(torch.ones(3), name="after", op=hvd.Sum), torch.full((3,), float(size)))
    hvd.shutdown()
    return {"rank": rank}


@pytest.mark.parametrize("np", [2, 3])
def test_missing_rank_is_named(np: int, tmp_path: Path) -> None:
    close_all()
    settings = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    with RankPool(np, **settings) as pool:
        assert [one["rank"] for one in pool.run(absent, str(tmp_path))] == list(range(np))
        words = pool.ranks[0].words.read_text()
    assert "Missing ranks:" in words
    assert "allreduce.lonely" in words
    assert "for more than 1 seconds" in words


def patient() -> None:
    """Longer than the warning, but not for ever: nothing is lost."""
    import time

    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    if hvd.rank() == 1:
        time.sleep(1.5)
    same(hvd.allreduce(torch.ones(3), name="late", op=hvd.Sum), torch.full((3,), 2.0))
    hvd.shutdown()


def test_a_warning_is_only_a_warning() -> None:
    close_all()
    with RankPool(2, HOROVOD_STALL_CHECK_TIME_SECONDS="1") as pool:
        pool.run(patient)
        assert "allreduce.late" in pool.ranks[0].words.read_text()
