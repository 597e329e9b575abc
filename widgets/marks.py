"""Marks on a cell's time axis: ranks that died, came or left, and the steps that were lost. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["died", "joined", "left", "lost"]

MOST = 40
"""Marks of a cell: the first ones, and how many more there are."""


class Mark(NamedTuple):
    """One moment; on the wire a list in this order (widgets/js/charts/marks.js)."""

    t: float  # seconds since the cell began
    kind: Kind
    label: str


class Marks:
    """All of a cell."""

    def __init__(self) -> None:
        self.shown: list[Mark] = []
        self.count = 0

    def add(self, t: float, kind: Kind, label: str) -> None:
        """Mark a moment."""
        self.count += 1
        if len(self.shown) < MOST:
            self.shown.append(Mark(round(t, 2), kind, label))

    def wire(self) -> list[list[float | str]]:
        """Return them as they travel."""
        return [list(mark) for mark in self.shown]
