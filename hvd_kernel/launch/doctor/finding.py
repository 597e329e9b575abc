"""Findings of a migration report: a place, what stands there, a verdict, and the line that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What becomes of it here."""

    RUNS = "runs"
    NOTE = "note"  # it runs, and something about it has no effect, or is not what it was
    LINE = "line"  # it needs a line
    NOT = "not"  # it is not here


@dataclass(frozen=True)
class Finding:
    """One of them. ``said``: what is so; ``remedy``: what to write; ``needs``: what may be installed already.

    ``cell``: of a notebook, from 1, and the line is the cell's; 0: it is not a notebook.
    """

    file: str
    line: int
    what: str
    verdict: Verdict
    said: str = ""
    remedy: str = ""
    needs: str = ""
    cell: int = 0


Reader = Callable[[str, str], list[Finding]]
"""From a text and its name to findings."""

_MOST = 72


def short(text: str) -> str:
    """Return a line as it is shown: on one line, and not too long."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST else f"{line[: _MOST - 4]} ..."
