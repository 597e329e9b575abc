"""Communication that a task of an ordinary client has ended: made anew before the next cell, or soon if none comes."""

from __future__ import annotations

from collections.abc import Callable

_SOON_S = 0.05  # for all ranks to notice that their communication has ended
_AGAIN_S = 0.5  # where a cell runs, or a rank is dead


class Repair:
    """Whether it is needed. Several ranks say so, and a cell may begin between the first and the last of them."""

    needed = False
    _is_awaited = False  # a look is due

    def ask(self, later: Callable[[float, Callable[[], None]], None], repair: Callable[[], bool]) -> None:
        """Have it made soon, unless it is done before; while ``repair`` returns False, it is asked again."""
        self.needed = True
        if not self._is_awaited:
            self._is_awaited = True
            later(_SOON_S, lambda: self._look(later, repair))

    def done(self) -> None:
        """Take note that the ranks have been asked."""
        self.needed = False

    def _look(self, later: Callable[[float, Callable[[], None]], None], repair: Callable[[], bool]) -> None:
        if self.needed and not repair():
            later(_AGAIN_S, lambda: self._look(later, repair))
        else:
            self._is_awaited = False
