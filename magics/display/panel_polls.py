"""Polls of a cell's panel: the ranks' latest operations for its timeline, and other notebooks' ranks on this host."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.units import plural
from hvd_kernel.processes import leftovers

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.cluster.requests.gather import Gather
    from hvd_kernel.widgets import Dashboard


HANDLER = "recent"
PATIENCE_S = 1.0
"""Time limit for an answer: a rank in C code that holds the GIL does not answer."""

LAST_S = 0.5


class TimelinePoll:
    """Queries of the ranks' latest operations: ``tick`` never blocks; ``finish`` queries once more after the cell."""

    def __init__(self, session: Session, board: Dashboard, ranks: Callable[[], Sequence[int]]) -> None:
        self._session = session
        self._board = board
        self._ranks = ranks
        self._gather: Gather | None = None
        self._queried: set[int] = set()
        self._since = 0.0

    def tick(self) -> None:
        """Collect the answers to a pending query, or send one that is due."""
        if self._gather is not None:
            answers = self._gather.so_far()
            if len(answers) < len(self._queried) and time.monotonic() - self._since < PATIENCE_S:
                return
            self._gather = None
            self._board.feed_recent(answers)
        elif self._board.timeline_due:
            self._query(over=False)

    def finish(self) -> None:
        """Query the cell's last seconds, if its panel is displayed."""
        if not self._board.shown:
            return
        if self._gather is not None:
            self._board.feed_recent(self._gather.wait_all(LAST_S))
        self._query(over=True)
        if self._gather is not None:
            self._board.feed_recent(self._gather.wait_all(LAST_S))

    def _query(self, *, over: bool) -> None:
        alive = [rank for rank in self._ranks() if rank not in self._session.dead]
        ranks, content = self._board.timeline_question(alive, over=over)
        try:
            self._gather = self._session.post(HANDLER, ranks, content, urgent=True)
        except ClusterError:  # the cluster is being stopped
            self._gather = None
        self._queried, self._since = set(ranks), time.monotonic()


OTHERS_EVERY_S = 5.0
"""Period of the check, which inspects all processes of the host."""


class OtherRanks:
    """Check for other notebooks' ranks; ``tick`` never blocks."""

    def __init__(self, session: Session, board: Dashboard) -> None:
        self._session = session
        self._board = board
        self._due = 0.0

    def tick(self) -> None:
        """Check, if the panel is displayed and a check is due."""
        now = time.monotonic()
        if self._board.shown and now >= self._due:
            self._due = now + OTHERS_EVERY_S
            self._board.show_other_ranks(beside(self._session))


def beside(session: Session) -> str:
    """Return the sentence about other notebooks' ranks on the host of a session's; "" if there are none."""
    here = len(session.ranks.here)
    if not here:
        return ""
    return sentence(leftovers.other_ranks(session.supervisor), here, len(os.sched_getaffinity(0)))


def sentence(others: int, ranks: int, cores: int) -> str:
    """Return the sentence about ``others`` ranks of other notebooks beside ``ranks`` of this one. Pure.

    Example: ``sentence(4, 2, 2)`` is ``4 ranks of other notebooks run on this host too: 6 ranks share 2 cores``.
    """
    if not others:
        return ""
    running = "1 rank of another notebook runs" if others == 1 else f"{others} ranks of other notebooks run"
    return f"{running} on this host too: {ranks + others} ranks share {plural(cores, 'core')}"
