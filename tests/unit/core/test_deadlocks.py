"""When a rank reports that its program cannot call a collective any more: a table of samples in virtual time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from hvd_kernel.core.deadlocks import DEADLOCK_S, MOST_S, POLL_S, Decision, StateSample, other_threads_may_call

STUCK = StateSample(0.0, 7, call=(1, 2), waits=((0, "a"),), seconds=100.0)
ENDED = StateSample(0.0, 7, ended=True)
Change = Callable[[StateSample, int], StateSample]


def reports(
    sample: StateSample, change: Change = lambda sample, _number: sample, *, seconds: float = DEADLOCK_S + POLL_S
) -> list[float]:
    """Return the times of reports, where ``change`` derives every sample from the first one."""
    decision, times = Decision(), []
    for number in range(int(seconds / POLL_S) + 1):
        at = number * POLL_S
        if decision.is_due(replace(change(sample, number), at=at)):
            times.append(at)
    return times


@pytest.mark.parametrize("sample", [STUCK, ENDED, replace(STUCK, run=0)], ids=["stuck", "ended", "script"])
def test_a_rank_reports_after_seconds_without_change(sample: StateSample) -> None:
    assert reports(sample, seconds=DEADLOCK_S) == [DEADLOCK_S]


def test_reports_are_repeated_less_and_less_often() -> None:
    times = reports(STUCK, seconds=120.0)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[0] == 2 * POLL_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST_S


SILENT: dict[str, tuple[StateSample, Change]] = {
    "computes": (STUCK, lambda sample, _: replace(sample, call=None)),
    "computes now and then": (STUCK, lambda sample, n: replace(sample, call=None) if n % 5 == 4 else sample),
    "waits in a new call each time": (STUCK, lambda sample, n: replace(sample, call=(n, 2))),
    "polls a handle": (STUCK, lambda sample, n: replace(sample, call=(1, n % 2))),
    "asks for more meanwhile": (STUCK, lambda sample, n: replace(sample, waits=(*sample.waits, (0, f"b.{n}")))),
    "calls the same name again and again": (STUCK, lambda sample, _: replace(sample, seconds=POLL_S)),
    "waits for nothing of its own": (STUCK, lambda sample, _: replace(sample, waits=())),
    "another thread of the user's runs": (STUCK, lambda sample, _: replace(sample, may_progress=True)),
    "another thread of the user's runs at times": (STUCK, lambda sample, n: replace(sample, may_progress=n % 5 == 4)),
    "serves a request of the notebook": (STUCK, lambda sample, _: replace(sample, run=None)),
    "begins another cell": (STUCK, lambda sample, n: replace(sample, run=n)),
    "has ended, and a thread goes on": (ENDED, lambda sample, _: replace(sample, may_progress=True)),
    "has ended, and an operation is in flight": (ENDED, lambda sample, _: replace(sample, waits=((0, "a"),))),
    "ends one cell after the other": (ENDED, lambda sample, n: replace(sample, run=n)),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_rank_that_may_still_call_reports_nothing(case: str) -> None:
    assert reports(*SILENT[case], seconds=60.0) == []


@pytest.mark.parametrize("daemon", [False, True])
def test_running_thread_of_the_user_may_call(daemon: bool) -> None:
    over = threading.Event()
    thread = threading.Thread(target=lambda: over.wait(60), daemon=daemon)
    before = other_threads_may_call()
    thread.start()
    try:
        assert other_threads_may_call()
    finally:
        over.set()
        thread.join()
    assert not before
    assert not other_threads_may_call()


def test_a_timer_may_call() -> None:
    timer = threading.Timer(60, int)
    timer.start()
    try:
        assert other_threads_may_call()
    finally:
        timer.cancel()
        timer.join()
