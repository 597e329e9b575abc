"""Questions for the panel's timeline: what each rank's core did lately, asked while a page shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvd_kernel.errors import ClusterError

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.cluster.requests.gather import Gather
    from hvd_kernel.widgets import Dashboard

HANDLER = "recent"
PATIENCE_S = 1.0
"""A rank that has not answered by then has no news: it may be in C code that holds Python's lock."""

LAST_S = 0.5


class TimelinePoll:
    """``tick`` asks and takes answers, and never waits; ``finish`` asks once more, when the cell has ended."""

    def __init__(self, session: Session, board: Dashboard, ranks: Callable[[], Sequence[int]]) -> None:
        self._session = session
        self._board = board
        self._ranks = ranks
        self._gather: Gather | None = None
        self._asked: set[int] = set()
        self._since = 0.0

    def tick(self) -> None:
        """Do what is due."""
        if self._gather is not None:
            answers = self._gather.so_far()
            if len(answers) < len(self._asked) and time.monotonic() - self._since < PATIENCE_S:
                return
            self._gather = None
            self._board.feed_recent(answers)
        elif self._board.timeline_due:
            self._ask(over=False)

    def finish(self) -> None:
        """Have the cell's last seconds, where somebody has its panel."""
        if not self._board.shown:
            return
        if self._gather is not None:
            self._board.feed_recent(self._gather.settle(LAST_S))
        self._ask(over=True)
        if self._gather is not None:
            self._board.feed_recent(self._gather.settle(LAST_S))

    def _ask(self, *, over: bool) -> None:
        alive = [rank for rank in self._ranks() if rank not in self._session.dead]
        asked, content = self._board.timeline_question(alive, over=over)
        try:
            self._gather = self._session.post(HANDLER, asked, content, urgent=True)
        except ClusterError:  # the cluster is being stopped
            self._gather = None
        self._asked, self._since = set(asked), time.monotonic()
