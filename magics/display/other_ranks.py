"""Other notebooks' ranks on this host, told in the panel of a cell while somebody sees it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from hvd_kernel.formatting.plural import plural
from hvd_kernel.processes import leftovers

if TYPE_CHECKING:
    from hvd_kernel.cluster import Session
    from hvd_kernel.widgets import Dashboard

EVERY_S = 5.0
"""How often a panel looks for them: all processes of the host are looked at."""


class OtherRanks:
    """``tick`` looks where it is due, and never waits."""

    def __init__(self, session: Session, board: Dashboard) -> None:
        self._session = session
        self._board = board
        self._due = 0.0

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        if self._board.shown and now >= self._due:
            self._due = now + EVERY_S
            self._board.tell_other_ranks(beside(self._session))


def beside(session: Session) -> str:
    """Say with how many ranks of other notebooks those of a session share this host; "" where there are none."""
    here = len(session.ranks.here)
    if not here:
        return ""
    return sentence(leftovers.other_ranks(session.supervisor), here, len(os.sched_getaffinity(0)))


def sentence(others: int, own: int, cores: int) -> str:
    """Say it. Pure.

    Example: ``sentence(4, 2, 2)`` is ``4 ranks of other notebooks run on this host too: 6 ranks share 2 cores``.
    """
    if not others:
        return ""
    who = "1 rank of another notebook runs" if others == 1 else f"{others} ranks of other notebooks run"
    return f"{who} on this host too: {own + others} ranks share {plural(cores, 'core')}"
