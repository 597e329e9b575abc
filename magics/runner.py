"""One cell on the ranks, from its code to its error: the loop between the session and the renderer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvd_kernel.errors import HvdTimeout
from hvd_kernel.magics.failure import merged_error
from hvd_kernel.magics.interrupts import Interrupted, Presses, counted
from hvd_kernel.magics.merge import named
from hvd_kernel.protocol import Failure, RankDone

if TYPE_CHECKING:
    from hvd_kernel.cluster import Run, Session
    from hvd_kernel.magics.render import Renderer

POLL_S = 0.05
GRACE_S = 5.0
"""After a timeout: how long ranks may take to obey before the cell is given up."""

GIVE_UP_AT = 3
"""Presses of the interrupt key."""

STUCK = "; %hvd restart starts them again"


class Watch:
    """Drives one run until every rank is done, or is given up."""

    def __init__(
        self, session: Session, run: Run, renderer: Renderer, ranks: Sequence[int], timeout: float | None
    ) -> None:
        self._session = session
        self._run = run
        self._renderer = renderer
        self._left = set(ranks)
        self._ranks = tuple(ranks)
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._obeyed = 0
        self._late = False
        self._failures: dict[int, Failure] = {}

    def drive(self) -> None:
        """Pump events to the renderer; returns when the run is over. Raises nothing of the ranks."""
        with counted() as presses:
            while self._left and not self._given_up(presses):
                self._obey(presses)
                event = self._run.next(POLL_S)
                if event is not None:
                    self._renderer.take(event)
                    if isinstance(event, RankDone):
                        self._left.discard(event.rank)
                        if event.failure:
                            self._failures[event.rank] = event.failure
                elif self._run.done:
                    self._left.clear()
                self._renderer.tick()
            self._obeyed = presses.count

    def word(self) -> str:
        """Return the final state of the ranks that did not fail."""
        return "interrupted" if self._obeyed or self._late else "done"

    def check(self, is_local: Callable[[str], bool]) -> None:
        """Raise what the cell has to fail with, if anything."""
        verb = "is" if len(self._left) == 1 else "are"
        stuck = f"; {named(self._left)} {verb} still running{STUCK}" if self._left else ""
        if self._obeyed:
            raise Interrupted(f"{named(self._ranks)} interrupted{stuck}, variables are kept")
        if self._late:
            raise HvdTimeout(f"the cell took longer than {self._timeout:g} s and was interrupted{stuck}")
        if self._failures:
            raise merged_error(list(self._failures.values()), is_local)

    def _obey(self, presses: Presses) -> None:
        if presses.count > self._obeyed:
            self._obeyed = presses.count
            self._session.interrupt(sorted(self._left))
        if self._deadline is not None and not self._late and time.monotonic() > self._deadline:
            self._late = True
            self._session.interrupt(sorted(self._left))

    def _given_up(self, presses: Presses) -> bool:
        """Whether a third press, or the time after a timeout, ends the wait for ranks that do not obey."""
        too_late = self._late and self._deadline is not None and time.monotonic() > self._deadline + GRACE_S
        return presses.count >= GIVE_UP_AT or too_late
