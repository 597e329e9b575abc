"""Marks on a cell's time axis: ranks that died, joined or left, and lost steps. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["died", "joined", "left", "lost"]

MOST = 40
"""Limit of the marks of a cell; later ones are only counted."""


class Mark(NamedTuple):
    """A mark; on the wire a list in this order (widgets/js/charts/marks.js)."""

    t: float  # seconds since the start of the cell
    kind: Kind
    label: str


class Marks:
    """The marks of a cell."""

    def __init__(self) -> None:
        self.shown: list[Mark] = []
        self.count = 0

    def add(self, t: float, kind: Kind, label: str) -> None:
        """Add a mark."""
        self.count += 1
        if len(self.shown) < MOST:
            self.shown.append(Mark(round(t, 2), kind, label))

    def wire(self) -> list[list[float | str]]:
        """Return the marks in wire form."""
        return [list(mark) for mark in self.shown]
