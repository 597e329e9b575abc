"""A rank that never calls: the others are notified of the rank, the tensor and the time, and get an error.

When that is, whose time counts and whose does not is told in virtual time: the stalls in tests/native/engine/controller/test_controller.cc.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.exact import raises, same
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp


SHUTDOWN_S = 20  # every collective here must have all its ranks within this time: a busy machine keeps one of them back


def absent(folder: str) -> float:
    """Return how long a rank has waited for the missing one.

    That one, the last, is at a prompt, whose time does not count, until rank 0 knows that it alone is missing.
    """
    import time

    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session
    from hvd_kernel.errors import RankStalled

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    failing, took, known = size - 1, 0.0, Path(folder, "known")
    if rank == failing:
        session.engine().park(True)
    hvd.barrier()
    if rank == failing:
        while not known.exists():
            time.sleep(0.01)
        session.engine().park(False)
    else:
        began = time.monotonic()
        handle = hvd.allreduce_async(torch.ones(3), name="lonely", op=hvd.Sum)
        if rank == 0:
            while not (waits := [p for p in session.engine().pending() if p["missing"] == [failing]]):
                assert not hvd.poll(handle), "it did not say whom it waits for"
                time.sleep(0.01)
            assert waits[0]["name"] == "allreduce.lonely"
            known.touch()
        error = raises(RankStalled, f"rank {failing}", hvd.synchronize, handle)
        assert error.rank == failing
        assert "allreduce.lonely" in str(error)
        took = time.monotonic() - began
        Path(folder, str(rank)).touch()
    while not all(
        Path(folder, str(each)).exists() for each in range(failing)
    ):  # until then the other one submits nothing
        time.sleep(0.01)
    same(hvd.allreduce(torch.ones(3), name="after", op=hvd.Sum), torch.full((3,), float(size)))
    hvd.shutdown()
    return took


def late_from_a_prompt() -> None:
    """Delay the last rank as at a prompt; no rank fails because of it."""
    import time

    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    hvd.init()
    failing = hvd.size() - 1
    if hvd.rank() == failing:
        session.engine().park(True)
        hvd.barrier()
        time.sleep(SHUTDOWN_S + 3)  # the person's
        session.engine().park(False)
    else:
        hvd.barrier()
    same(hvd.allreduce(torch.ones(3), name="patient", op=hvd.Sum), torch.full((3,), float(hvd.size())))
    hvd.shutdown()


@pytest.mark.nightly
def test_missing_rank_is_named_but_not_while_it_is_at_a_prompt(tmp_path: Path) -> None:
    settings = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(SHUTDOWN_S)}
    with RankPool(3, **settings) as pool:
        pool.run(late_from_a_prompt)
        assert max(pool.run(absent, str(tmp_path))) >= SHUTDOWN_S, "so long the first to ask has waited"


def patient(words: str) -> None:
    """Wait for the warning, with a limit: nothing is lost."""
    import time

    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    while hvd.rank() == 1 and "allreduce.late" not in Path(words).read_text():
        time.sleep(0.01)
    same(hvd.allreduce(torch.ones(3), name="late", op=hvd.Sum), torch.full((3,), 2.0))
    hvd.shutdown()


def test_stall_warning_names_the_missing_rank() -> None:
    with RankPool(2, HOROVOD_STALL_CHECK_TIME_SECONDS="1") as pool:
        pool.run(patient, str(pool.ranks[0].output))
        words = pool.ranks[0].output.read_text()
    assert "Missing ranks:\n1: [allreduce.late]" in words
    assert "for more than 1 seconds" in words
