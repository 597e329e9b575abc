"""A check that hangs: its test fails and names the waiting ranks; the pool is discarded, and the next test gets another."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import until
from hvdtest.launch import RankPool
from hvdtest.pools import layouts, pool_of

pytestmark = pytest.mark.mp

HUNG = 1  # the rank that does not come
HELD = "it holds the interpreter"


layout = layouts((2, "shm"))


@pytest.fixture
def on_alarm() -> Iterator[None]:
    """As pytest-timeout with its method "signal"."""

    def fail(*_: Any) -> None:
        pytest.fail("the time of the test is over")

    before = signal.signal(signal.SIGALRM, fail)
    yield
    signal.signal(signal.SIGALRM, before)


def asked() -> None:
    """Request a sum on every rank but one, which remains in flight."""
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    if hvd.rank() != HUNG:
        hvd.allreduce_async(torch.ones(3), name="lonely")
        while hvd.rank() == 0 and not any(one["missing"] == [HUNG] for one in session.engine().pending()):
            time.sleep(0.001)


def hangs(folder: str, how: str) -> None:
    import hvd_kernel.torch as hvd

    Path(folder, str(hvd.rank())).touch()
    if hvd.rank() == HUNG and how == HELD:
        ctypes.PyDLL(None).pause()
    threading.Event().wait()


def fine() -> float:
    import torch

    import hvd_kernel.torch as hvd

    return hvd.allreduce(torch.ones(1), name="fine", op=hvd.Sum).item()


def sits(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_overdue_check_names_the_operation_and_missing_ranks(
    ranks: RankPool, layout: tuple[int, str], request: pytest.FixtureRequest
) -> None:
    ranks.run(asked)
    with pytest.raises(AssertionError) as caught:
        ranks.run(sits, 1000.0, timeout=0.1)
    words = str(caught.value)
    assert words.startswith("sits is overdue\n--- rank 0: waits for allreduce.lonely (allreduce, missing [1])\n")
    assert "--- rank 1: waits for no operation\n" in words
    another = pool_of(layout, request.path)
    assert another is not ranks
    assert another.run(fine) == [2.0, 2.0]


@pytest.mark.parametrize(
    "how", ["it waits", pytest.param(HELD, marks=pytest.mark.nightly)]
)  # 20 s, until it is given up
def test_timed_out_test_names_the_line_of_each_rank(ranks: RankPool, on_alarm: None, how: str, tmp_path: Path) -> None:
    def alarm() -> None:
        until(lambda: len(list(tmp_path.iterdir())) == ranks.np, "all ranks are in the check")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

    aside = threading.Thread(target=alarm)
    aside.start()
    with pytest.raises(pytest.fail.Exception, match="the time of the test is over") as caught:
        ranks.run(hangs, str(tmp_path), how)
    aside.join()
    (words,) = caught.value.__notes__
    first, _, second = words.partition("--- rank 1: ")
    assert first.startswith("hangs is overdue\n--- rank 0: waits for no operation\n")
    assert "in hangs\n" in first, "its stack"
    silent = "runs no Python, exit status -6\nFatal Python error: Aborted\n"
    assert second.startswith(silent if how == HELD else "waits for no operation\n")
    assert "in hangs\n" in second, "its stack"
    assert ranks.broken
