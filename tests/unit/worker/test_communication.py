"""Which of a rank's errors another rank is the cause of."""

from __future__ import annotations

import pytest

from hvd_kernel.errors import HorovodInternalError, HvdTimeout, Mismatch, RankDied, RankFailed, RankStalled
from hvd_kernel.magics.display.user_errors import merged_error
from hvd_kernel.protocol.messages import Failure
from hvd_kernel.worker.communication import is_secondary


@pytest.mark.parametrize("kind", [RankFailed, RankDied, RankStalled])
def test_errors_that_another_rank_caused(kind: type[HorovodInternalError]) -> None:
    assert is_secondary(kind("rank 1 ...", 1))


@pytest.mark.parametrize("kind", [ValueError, HorovodInternalError, Mismatch, HvdTimeout])
def test_errors_of_this_rank(kind: type[Exception]) -> None:
    assert not is_secondary(kind("..."))


def test_who_waited_in_vain_is_not_the_root_cause() -> None:
    """Rank 1 was stuck, so the others stalled; what it raised, later, is what has to be mended."""
    errors = {0: RankStalled("rank 1 ...", 1), 1: ValueError("bad"), 2: RankStalled("rank 1 ...", 1)}
    raised_at = {0: 2.0, 1: 5.0, 2: 2.0}
    failures = [
        Failure(rank, type(error).__name__, str(error), (), raised_at[rank], is_secondary(error))
        for rank, error in errors.items()
    ]
    merged = merged_error(failures)
    assert (merged.rank, type(merged).__name__, str(merged)) == (1, "ValueError", "bad")
    assert merged.lines[-1] == "[0,2] released, because rank 1 failed"
