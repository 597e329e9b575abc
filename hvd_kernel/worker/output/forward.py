r"""Forwarding of output to the notebook: limited, depending on the text alone and not on its timing.

Pure: it reads through a function, and returns the text to send.

Terms.
  head       the beginning of a cell's text, sent immediately, until its room is full
  flood      the text after a full head: the notebook gets samples of it while the cell runs, and its tail at the end,
             after the exact number of lines between head and tail
  collapsed  text without the parts that a following ``\r`` overwrites: a progress bar takes no room
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_CHUNK = 64 * 1024
_COUNT = 1 << 20
_SAMPLE = 8 * 1024
_RESENT = 16
"""Size of overwritten text, in heads, from which it counts as a flood itself."""

_OVERWRITTEN = re.compile(r"\r(?:[^\r\n\x1b]|\x1b\[[0-9;]*m)*(?=\r[^\n])")
_CONTINUATION = bytes(range(0x80, 0xC0))

Read = Callable[[int, int], bytes]
Piece = dict[str, Any]
"""Keys of a stream message: text, and live (a sample) or skipped (left out before it: rest, lines, beginning)."""


@dataclass(frozen=True)
class Room:
    """Limits of the text that a cell may send of a rank's stream."""

    head: int
    tail: int

    @classmethod
    def for_ranks(cls, n: int) -> Room:
        """Return the limits for n ranks of a notebook: twice what a cell's stored output keeps of each rank."""
        head = max(64 * 1024, 2 * 1024 * 1024 // max(n, 4))
        return cls(head, head // 2)


class Forward:
    """Forwarding of one cell's part of a stream's file, which starts at ``begin``."""

    def __init__(self, read: Read, begin: int, room: Room) -> None:
        self._read = read
        self._room = room
        self._at = begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole = self._open = self._sent = 0  # room used by complete lines and by the open line; all text sent
        self._flood: Gap | None = None

    def pump(self, end: int) -> Iterator[Piece]:
        """Return the new text up to ``end``."""
        sent: list[str] = []
        while self._flood is None and self._at < end:
            stop = min(end, self._at + min(_CHUNK, self._left()))
            sent.append(self._collapse(self._decoder.decode(self._read(self._at, stop))))
            self._at = stop
            if self._left() <= 0:
                self._at -= len(self._decoder.getstate()[0])
                self._flood = Gap(self._read, self._at)
        if text := "".join(sent):
            yield {"text": text}
        if self._flood is not None and self._at < end:
            self._flood.count(end - self._room.tail)
            sample = self._read(max(self._at, end - _SAMPLE), end)
            self._at = end
            yield {"text": sample.partition(b"\n")[2].decode(errors="replace"), "live": True}

    def finish(self, end: int) -> Iterator[Piece]:
        """Return the rest of the cell."""
        yield from self.pump(end)
        if self._flood is None:
            if rest := self._decoder.decode(b"", final=True):
                yield {"text": rest}
            return
        start = self._flood.close(max(self._flood.begin, end - self._room.tail), end)
        skipped = [self._flood.rest, self._flood.lines, self._flood.beginning]
        yield {"text": self._read(start, end).decode(errors="replace"), "skipped": skipped}

    def _left(self) -> int:
        return min(self._room.head - self._whole - self._open, _RESENT * self._room.head - self._sent)

    def _collapse(self, text: str) -> str:
        collapsed = _OVERWRITTEN.sub("", text)
        self._sent += len(collapsed)
        before, newline, after = collapsed.rpartition("\n")
        if newline:
            self._whole += (0 if before.startswith("\r") else self._open) + len(before) + 1
            self._open = len(after)
        else:
            self._open = len(collapsed) + (0 if collapsed.startswith("\r") else self._open)
        return collapsed


class Gap:
    """Part of a flood that is left out: end of the head's last line, lines, begin of the tail's first line."""

    def __init__(self, read: Read, begin: int) -> None:
        self.begin = begin
        self.rest = self.lines = self.beginning = 0
        self._read = read
        self._at = begin

    def count(self, end: int) -> None:
        """Leave out everything before ``end``."""
        while self._at < end:
            data = self._read(self._at, min(end, self._at + _COUNT))
            if not data:
                return
            self._at += len(data)
            if not self.lines:
                line, newline, data = data.partition(b"\n")
                self.rest = _after_return(self.rest, line)
                self.lines = len(newline)
            if self.lines:
                self.lines += data.count(b"\n")
                _, newline, line = data.rpartition(b"\n")
                self.beginning = _after_return(0 if newline else self.beginning, line)

    def close(self, start: int, end: int) -> int:
        """Return where the tail begins, at a line's start if there is one; everything before it is left out."""
        if start > self.begin:
            data = self._read(start, end)
            newline, back = data.find(b"\n"), data.find(b"\r")
            if 0 <= newline < len(data) - 1:
                start += newline + 1
            elif back >= 0:
                start += back
            else:
                start += next((i for i, byte in enumerate(data[:4]) if byte not in _CONTINUATION), 0)
        self.count(start)
        return start


def _after_return(before: int, line: bytes) -> int:
    r"""Return the characters of a line that continues in a piece of UTF-8; those before a ``\r`` do not count."""
    _, back, rest = line.rpartition(b"\r")
    return (0 if back else before) + len(rest.translate(None, _CONTINUATION))
