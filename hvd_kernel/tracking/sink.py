"""The Protocol of a sink: what writes a run's values and files to one kind of place. A new kind is one file.

Terms.
  sink     writes to one place; any of its calls may raise, which ends that sink and nothing else
  run      one training, by one name in every sink
  point    the values of one ``hvd.log``, already reduced over ranks
  item     a file or folder that ``hvd.log_model`` or ``hvd.log_artifact`` names
  notes    inputs, outputs, tags or meta of the run, by name
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

MODEL = "model"
FILE = "file"


def now() -> float:
    """Return the seconds since 1970."""
    return time.time()


@dataclass(frozen=True)
class Run:
    """One training."""

    id: str  # 32 hexadecimal digits
    started: float = field(default_factory=now)  # seconds since 1970
    title: str = ""  # the user's name for it

    @property
    def name(self) -> str:
        """Short, for people."""
        return self.id[:8]


@dataclass(frozen=True)
class Point:
    """Values of one moment."""

    values: Mapping[str, float]
    step: int | None = None
    time: float = field(default_factory=now)


@dataclass(frozen=True)
class Item:
    """A file or folder of the run."""

    path: Path
    name: str
    kind: str = FILE
    step: int | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)  # e.g. a model's framework
    time: float = field(default_factory=now)


class Sink(Protocol):
    """Writes to one place. Every call has reached the operating system when it returns."""

    def log(self, point: Point) -> None:
        """Add values."""

    def keep(self, item: Item) -> None:
        """Add a file or folder, or a word about it where this kind of place has no files."""

    def note(self, what: str, values: Mapping[str, Any]) -> None:
        """Add to the run's inputs, outputs, tags or meta."""

    def end(self, status: str) -> None:
        """Close; status: succeeded, failed or stopped."""


def moment(seconds: float) -> datetime:
    """Return a time in UTC."""
    return datetime.fromtimestamp(seconds, tz=UTC)


class Steps:
    """Counts for each name from 0 where the user gives no step, for places that need one."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def of(self, name: str, step: int | None) -> int:
        """Return the step, or the number of this name's value."""
        here = self._next.get(name, 0) if step is None else step
        self._next[name] = here + 1
        return here
