"""Communication that a task has shut down, in virtual time: repaired once, also if a rank reports it during a cell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hvd_kernel.cluster.session import Repair


class Ranks:
    """A fake of the ranks to repair; ``busy`` while a cell runs or a rank is dead."""

    def __init__(self) -> None:
        self.repair, self.busy, self.made = Repair(), False, 0
        self._timers: list[Callable[[], None]] = []

    def say_broken(self) -> None:
        self.repair.request(lambda _seconds, function: self._timers.append(function), self._make)

    def pass_time(self) -> int:
        """Fire the due timers; return their number."""
        due, self._timers = self._timers, []
        for each in due:
            each()
        return len(due)

    def _make(self) -> bool:
        if self.busy:
            return False
        self.repair.done()
        self.made += 1
        return True


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_several_reports_cause_one_repair(ranks: Ranks) -> None:
    for _ in range(3):
        ranks.say_broken()
    assert (ranks.pass_time(), ranks.pass_time(), ranks.made, ranks.repair.needed) == (1, 0, 1, False)
    ranks.say_broken()
    assert (ranks.pass_time(), ranks.made) == (1, 2)


def test_start_of_a_cell_replaces_the_repair(ranks: Ranks) -> None:
    ranks.say_broken()
    ranks.repair.done()
    assert (ranks.pass_time(), ranks.pass_time(), ranks.made) == (1, 0, 0)


def test_report_during_a_cell_is_not_lost(ranks: Ranks) -> None:
    """The check found a running cell, no check followed it, and a later report counted as the same one."""
    ranks.say_broken()
    ranks.repair.done()  # by the cell that runs now
    ranks.busy = True
    ranks.say_broken()
    assert [ranks.pass_time() for _ in range(3)] == [1, 1, 1]
    assert (ranks.made, ranks.repair.needed) == (0, True)
    ranks.say_broken()  # the next task's
    ranks.busy = False
    assert (ranks.pass_time(), ranks.pass_time(), ranks.made, ranks.repair.needed) == (1, 0, 1, False)
