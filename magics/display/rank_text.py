r"""Text of the ranks: a rank's lines as a terminal would finally show them, bounded, and equal lines once. Pure.

Terms.
  head, tail   the first and the last lines, which are kept; the lines between them are counted and dropped
  open line    the last line before its newline; a ``\r`` starts it again, so that a progress bar stays one line
  below        lines under the open line after codes moved the cursor up, as several progress bars do
  clean        without invisible characters and terminal codes, except colours, which end with their line
  label        the ranks of a group as text: ``[0]``, ``[0-3]``, ``[0,2-3]``
  merge        an item that several ranks have appears once, in its place between their other items, which are sorted by
               rank. The items of each rank keep their order.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hvd_kernel.formatting.rank_labels import label

MAX_WIDTH = 4000
MAX_UP = 32

_SPLIT = re.compile(r"(\r\n|\n|\r|\x1b\[\d*[AF])")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]{0,16})?\Z")  # the rest arrives with the next piece
_COLOUR = r"\x1b\[[0-9;:]*m"
_CODES = re.compile(
    rf"({_COLOUR})"
    r"|\x1b(?:\[[0-?]*[ -/]*(?:[@-~]|$)|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[PX^_][^\x1b]*(?:\x1b\\|$)|[ -/]*[0-~])"
    r"|[\x01-\x08\x0b-\x1f\x7f-\x9f]"
)
_COLOURS = re.compile(_COLOUR)


def clean(line: str) -> str:
    """Return a line in the form that is stored."""
    if line.isprintable():
        return line
    line = _CODES.sub(r"\1", line).replace("\0", "\ufffd")
    colours = _COLOURS.findall(line)
    return line if not colours or colours[-1] in ("\x1b[m", "\x1b[0m") else f"{line}\x1b[0m"


@dataclass(frozen=True)
class TextLimits:
    """Limits of a rank's kept text: one half is for its head, the other for its tail."""

    lines: int = 2000
    chars: int = 256 * 1024

    @classmethod
    def for_ranks(cls, n: int) -> TextLimits:
        """Return the share of each of n ranks in the limits of a cell (1 MiB)."""
        return cls(lines=max(100, 8000 // max(n, 4)), chars=max(16 * 1024, 1024 * 1024 // max(n, 4)))


class Lines:
    """The lines of one stream of one rank, fed in pieces cut anywhere; ``where`` names the source of dropped lines."""

    def __init__(self, limits: TextLimits | None = None, where: str = "") -> None:
        limits = limits or TextLimits()
        self._half = TextLimits(limits.lines // 2, limits.chars // 2)
        self._where = where
        self._head: list[str] = []
        self._head_chars = 0
        self._head_ended = False
        self._tail: deque[str] = deque()
        self._tail_chars = 0
        self._left_out = 0
        self._open = ""
        self._cut = 0  # characters of the open line that did not fit
        self._return = False  # a \r came: the next character starts the line again, unless it is a newline
        self._below: list[str] = []  # the nearest one last
        self._held = ""

    def feed(self, text: str) -> None:
        """Append the next piece."""
        text, self._held = self._held + text, ""
        if unfinished := _UNFINISHED.search(text):
            text, self._held = text[: unfinished.start()], unfinished[0]
        for piece in _SPLIT.split(text):
            if piece in ("\n", "\r\n"):
                self._end_line()
            elif piece == "\r":
                self._return = True
            elif piece.startswith("\x1b[") and piece[-1] in "AF" and _SPLIT.fullmatch(piece):
                self._up(min(int(piece[2:-1] or 1), MAX_UP))
            elif piece:
                self._extend(piece)

    def skip(self, rest: int, lines: int, beginning: int) -> None:
        """Record a gap: characters of the open line, a number of lines (with that one), characters of the next line."""
        self._cut += rest
        if lines:
            self._below.clear()
            if self._open or self._cut:
                self._end_line()
                lines -= 1
            self._left_out += lines + len(self._tail)
            self._tail.clear()
            self._tail_chars = 0
            self._head_ended = True
            self._return = False
            self._cut = beginning

    def lines(self) -> list[str]:
        """Return the kept lines, with one line that counts the dropped ones."""
        rest = [self._line(), *reversed(self._below)]
        while rest and not rest[-1].strip():
            rest.pop()
        return [*self._head, *self._mark(), *self._tail, *rest]

    def _mark(self) -> list[str]:
        if not self._left_out:
            return []
        where = f": {self._where}" if self._where else ""
        return [f"… {self._left_out:,} line{'s' * (self._left_out != 1)} more{where}"]

    def _extend(self, piece: str) -> None:
        if self._return:
            self._open, self._cut, self._return = "", 0, False
        room = max(0, MAX_WIDTH - len(self._open))
        self._open += piece[:room]
        self._cut += max(0, len(piece) - room)

    def _line(self) -> str:
        line = clean(self._open)
        return f"{line} … {self._cut:,} characters left out" if self._cut else line

    def _end_line(self) -> None:
        self._keep(self._line())
        self._open, self._cut, self._return = "", 0, False
        if self._below:
            self._open, self._return = self._below.pop(), True

    def _up(self, lines: int) -> None:
        for _ in range(lines):
            kept = self._tail or self._head
            if not kept or (kept is self._head and self._head_ended):
                return
            self._below.append(self._line())
            self._open, self._cut = kept.pop(), 0
            if kept is self._tail:
                self._tail_chars -= len(self._open)
            else:
                self._head_chars -= len(self._open)

    def _keep(self, line: str) -> None:
        fits = len(self._head) < self._half.lines and self._head_chars + len(line) <= self._half.chars
        if fits and not self._tail and not self._head_ended:
            self._head.append(line)
            self._head_chars += len(line)
            return
        self._head_ended = True
        self._tail.append(line)
        self._tail_chars += len(line)
        while len(self._tail) > self._half.lines or (self._tail_chars > self._half.chars and len(self._tail) > 1):
            self._tail_chars -= len(self._tail.popleft())
            self._left_out += 1


T = TypeVar("T")

Groups = list[tuple[tuple[int, ...], T]]
"""(ranks, item that they have in common), in the order of display."""


def merge(items: Mapping[int, Sequence[T]]) -> Groups[T]:
    """Merge the ranks' sequences of hashable items.

    An item is emitted when every rank that has it left has reached it; if all wait for each other (ranks have the same
    items in different orders), the item of the first rank is emitted.
    """
    cursor = dict.fromkeys((rank for rank in sorted(items) if items[rank]), 0)
    left: dict[T, Counter[int]] = {}
    for rank in cursor:
        for item in items[rank]:
            left.setdefault(item, Counter())[rank] += 1
    merged: Groups[T] = []
    while cursor:
        heads = {rank: items[rank][at] for rank, at in cursor.items()}
        chosen = _ready(heads, left)
        group = tuple(rank for rank, head in heads.items() if head == chosen)
        merged.append((group, chosen))
        _advance(group, chosen, items, cursor, left)
    return merged


def _ready(heads: Mapping[int, T], left: Mapping[T, Mapping[int, int]]) -> T:
    for item in heads.values():
        if all(heads[rank] == item for rank in left[item]):
            return item
    return next(iter(heads.values()))


def _advance(
    group: Sequence[int],
    item: T,
    items: Mapping[int, Sequence[T]],
    cursor: dict[int, int],
    left: Mapping[T, Counter[int]],
) -> None:
    for rank in group:
        cursor[rank] += 1
        left[item][rank] -= 1
        if not left[item][rank]:
            del left[item][rank]
        if cursor[rank] == len(items[rank]):
            del cursor[rank]


def labelled(ranks: Iterable[int], text: str) -> str:
    """Return text after its label; further lines are indented, so that arrays stay aligned."""
    head = label(ranks)
    first, *rest = text.split("\n")
    return "\n".join([f"{head} {first}".rstrip(), *(f"{' ' * len(head)} {line}".rstrip() for line in rest)])


def merge_lines(lines: Mapping[int, Sequence[str]]) -> str:
    """Return all ranks' lines as one text, with a newline at the end unless it is empty."""
    return "".join(f"{labelled(ranks, line)}\n" for ranks, line in merge(lines))
