"""Communication that a task of an ordinary client has ended: made anew before the next cell, or soon if none comes."""

from __future__ import annotations

from collections.abc import Callable

_SOON_S = 0.05  # for all ranks to notice that their communication has ended


class Repair:
    """Whether it is needed. Several ranks say so at once."""

    needed = False

    def ask(self, later: Callable[[float, Callable[[], None]], None], repair: Callable[[], None]) -> None:
        """Have it made soon, unless it is done before."""
        if not self.needed:
            self.needed = True
            later(_SOON_S, lambda: repair() if self.needed else None)

    def done(self) -> None:
        """Take note that the ranks have been asked."""
        self.needed = False
