"""Log tail of the ranks: complete lines, bounded, free of terminal codes. Pure."""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

MAX_LINES = 200
MAX_WIDTH = 400
MAX_TEXT = 64 * 1024
MAX_OPEN = 4 * 1024

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class LogLine(NamedTuple):
    """One line of one rank."""

    rank: int
    stream: str
    text: str


class LogTail:
    """The last lines of all ranks in the order of their arrival; ``count`` counts also those that are gone."""

    def __init__(self) -> None:
        self.count = 0
        self.lines: deque[LogLine] = deque(maxlen=MAX_LINES)
        self._open: dict[tuple[int, str], str] = {}

    def feed(self, rank: int, stream: str, text: str) -> None:
        """Take a delta; of a flood only the end is looked at."""
        if len(text) > MAX_TEXT:
            self.count += text.count("\n", 0, len(text) - MAX_TEXT)
            text = text[-MAX_TEXT:]
            self._open.pop((rank, stream), None)
        *whole, rest = (self._open.pop((rank, stream), "") + text).split("\n")
        for line in whole:
            self.count += 1
            self.lines.append(LogLine(rank, stream, clean(line)))
        if rest:
            self._open[rank, stream] = rest[-MAX_OPEN:]

    def open_lines(self) -> list[LogLine]:
        """Unfinished lines: a progress bar, a prompt."""
        return [LogLine(rank, stream, clean(text)) for (rank, stream), text in self._open.items()]

    def since(self, count: int) -> list[LogLine]:
        """Lines that came after the first ``count``, as far as they are still there."""
        fresh = min(self.count - count, len(self.lines))
        return list(self.lines)[len(self.lines) - fresh :]


def clean(line: str) -> str:
    r"""Return what a terminal would leave standing of a line: after the last ``\r``, without codes, cut to a width."""
    line = _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2]
    line = _CONTROLS.sub("", line.expandtabs(4))
    return line if len(line) <= MAX_WIDTH else line[: MAX_WIDTH - 1] + "…"
