"""Live timeline of one cell: asked for while a page shows it, and once more when the cell has ended."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hvd_kernel.protocol.operations import Recent
from hvd_kernel.widgets.swimlanes.window import KEEP_S, MOST_STORED, Window, chosen

PERIOD_S = 0.25
"""Between two questions to the ranks."""

WISH_S = 5.0
"""A page that shows the timeline says so again before this is over."""


class Live:
    """Its owner holds a lock."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.window = Window(socket.gethostname(), round(1e6 * self.begin))
        self._until = 0.0
        self._asked = 0.0
        self._picked: int | None = None
        self._whole = False  # some page has nothing yet

    def wish(self, picked: int | None, *, whole: bool) -> None:
        """Take note that a page shows it."""
        self._until = time.monotonic() + WISH_S
        self._picked = picked
        self._whole |= whole

    @property
    def due(self) -> bool:
        """Whether ranks are to be asked now."""
        now = time.monotonic()
        return now < self._until and now - self._asked >= PERIOD_S

    def question(self, ranks: Sequence[int], slow: Iterable[int], *, over: bool) -> tuple[list[int], dict[str, Any]]:
        """Return whom to ask, and what; over: the cell is."""
        self._asked = now = time.monotonic()
        seconds = min(KEEP_S, now - self.begin)  # what came before is of earlier cells
        asked = chosen(ranks, slow, self._picked)
        self.window.lanes = {rank: lane for rank, lane in self.window.lanes.items() if rank in asked}
        return asked, {"cursors": self.window.cursors(), "seconds": seconds, "over": over}

    def take(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        """Take what they said; a rank that could not answer has no news."""
        found = {rank: Recent.of(content) for rank, content in answers.items() if "operations" in content}
        self.window.take(found, round(1e6 * time.monotonic()))

    def message(self) -> dict[str, Any]:
        """Return what the pages do not have yet."""
        if self._whole:
            self._whole = False
            self.window.news()
            return self.window.whole()
        return self.window.news()

    def stored(self) -> dict[str, Any] | None:
        """Return what stays with the cell: the last operations; None where there is nothing."""
        if not any(lane.operations for lane in self.window.lanes.values()):
            return None
        return self.window.whole(MOST_STORED)
