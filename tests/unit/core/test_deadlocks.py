"""When a rank reports that its program cannot call a collective any more: a table of looks in virtual time."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from hvd_kernel.core.stacks.deadlocks import DEADLOCK_S, LOOK_S, MOST_S, Decision, Look, others_may_call

STUCK = Look(0.0, 7, call=(1, 2), waits=((0, "a"),), seconds=100.0)
ENDED = Look(0.0, 7, ended=True)
Change = Callable[[Look, int], Look]


def reports(
    look: Look, change: Change = lambda look, _number: look, *, seconds: float = DEADLOCK_S + LOOK_S
) -> list[float]:
    """Return the times of reports, where ``change`` makes each look from the first one."""
    decision, times = Decision(), []
    for number in range(int(seconds / LOOK_S) + 1):
        at = number * LOOK_S
        if decision.is_due(replace(change(look, number), at=at)):
            times.append(at)
    return times


@pytest.mark.parametrize("look", [STUCK, ENDED, replace(STUCK, run=0)], ids=["stuck", "ended", "script"])
def test_a_rank_reports_after_seconds_without_change(look: Look) -> None:
    assert reports(look, seconds=DEADLOCK_S) == [DEADLOCK_S]


def test_reports_are_repeated_less_and_less_often() -> None:
    times = reports(STUCK, seconds=120.0)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[0] == 2 * LOOK_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == MOST_S


SILENT: dict[str, tuple[Look, Change]] = {
    "computes": (STUCK, lambda look, _: replace(look, call=None)),
    "computes now and then": (STUCK, lambda look, n: replace(look, call=None) if n % 5 == 4 else look),
    "waits in a new call each time": (STUCK, lambda look, n: replace(look, call=(n, 2))),
    "polls a handle": (STUCK, lambda look, n: replace(look, call=(1, n % 2))),
    "asks for more meanwhile": (STUCK, lambda look, n: replace(look, waits=(*look.waits, (0, f"b.{n}")))),
    "calls the same name again and again": (STUCK, lambda look, _: replace(look, seconds=LOOK_S)),
    "waits for nothing of its own": (STUCK, lambda look, _: replace(look, waits=())),
    "another thread of the user's runs": (STUCK, lambda look, _: replace(look, others=True)),
    "another thread of the user's runs at times": (STUCK, lambda look, n: replace(look, others=n % 5 == 4)),
    "serves a request of the notebook": (STUCK, lambda look, _: replace(look, run=None)),
    "begins another cell": (STUCK, lambda look, n: replace(look, run=n)),
    "has ended, and a thread goes on": (ENDED, lambda look, _: replace(look, others=True)),
    "has ended, and an operation is in flight": (ENDED, lambda look, _: replace(look, waits=((0, "a"),))),
    "ends one cell after the other": (ENDED, lambda look, n: replace(look, run=n)),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_rank_that_may_still_call_reports_nothing(case: str) -> None:
    assert reports(*SILENT[case], seconds=60.0) == []


@pytest.mark.parametrize("daemon", [False, True])
def test_a_users_thread_may_call(daemon: bool) -> None:
    over = threading.Event()
    thread = threading.Thread(target=lambda: over.wait(60), daemon=daemon)
    before = others_may_call()
    thread.start()
    try:
        assert others_may_call()
    finally:
        over.set()
        thread.join()
    assert not before
    assert not others_may_call()


def test_a_timer_may_call() -> None:
    timer = threading.Timer(60, int)
    timer.start()
    try:
        assert others_may_call()
    finally:
        timer.cancel()
        timer.join()
