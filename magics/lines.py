r"""What one rank printed, as a terminal would leave it standing, bounded. Pure.

Words.
  head, tail   the first and the last lines, which are kept; what is between them is counted and left out
  open line    the last line while no newline has ended it; a ``\r`` starts it again: a progress bar stays one line
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

MAX_WIDTH = 4000

_SPLIT = re.compile(r"(\r\n|\n|\r)")


@dataclass(frozen=True)
class Limits:
    """How much of a rank's text is kept: half of it from the start, half from the end."""

    lines: int = 2000
    chars: int = 256 * 1024

    @classmethod
    def for_ranks(cls, n: int) -> Limits:
        """Share one cell's room (1 MiB) among its ranks."""
        return cls(lines=max(100, 8000 // max(n, 4)), chars=max(16 * 1024, 1024 * 1024 // max(n, 4)))


class Lines:
    """The lines of one stream of one rank, fed in pieces cut anywhere."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._head: list[str] = []
        self._head_chars = 0
        self._tail: deque[str] = deque()
        self._tail_chars = 0
        self._left_out = 0
        self._open = ""
        self._cut = 0  # characters of the open line that did not fit
        self._return = False  # a \r came: the next character starts the line again, unless it is a newline

    def feed(self, text: str) -> None:
        """Take the next piece."""
        for piece in _SPLIT.split(text):
            if piece in ("\n", "\r\n"):
                self._end_line()
            elif piece == "\r":
                self._return = True
            elif piece:
                self._extend(piece)

    def lines(self) -> list[str]:
        """Return what is kept, with a line that says how much is not."""
        left_out = [f"… {self._left_out:,} line{'s' * (self._left_out != 1)} left out …"] if self._left_out else []
        rest = [self._line()] if self._open else []
        return [*self._head, *left_out, *self._tail, *rest]

    def _extend(self, piece: str) -> None:
        if self._return:
            self._open, self._cut, self._return = "", 0, False
        room = MAX_WIDTH - len(self._open)
        self._open += piece[:room]
        self._cut += max(0, len(piece) - room)

    def _line(self) -> str:
        return f"{self._open} … {self._cut:,} characters left out" if self._cut else self._open

    def _end_line(self) -> None:
        line = self._line()
        self._open, self._cut, self._return = "", 0, False
        half = Limits(self._limits.lines // 2, self._limits.chars // 2)
        if not self._tail and len(self._head) < half.lines and self._head_chars + len(line) <= half.chars:
            self._head.append(line)
            self._head_chars += len(line)
            return
        self._tail.append(line)
        self._tail_chars += len(line)
        while len(self._tail) > half.lines or (self._tail_chars > half.chars and len(self._tail) > 1):
            self._tail_chars -= len(self._tail.popleft())
            self._left_out += 1
