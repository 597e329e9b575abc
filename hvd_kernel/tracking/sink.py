"""Interface of a sink, which writes a run's values and files to one kind of target.

Terms.
  sink     writer for one target; an error in any of its methods disables only that sink
  run      one training, with the same name in every sink
  point    the values of one call of ``hvd.log``, reduced over ranks
  item     a file or folder passed to ``hvd.log_model`` or ``hvd.log_artifact``
  notes    inputs, outputs, tags or metadata of the run, by name
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
    """Return the current time in seconds since 1970."""
    return time.time()


@dataclass(frozen=True)
class Run:
    """One training."""

    id: str  # 32 hexadecimal digits
    started: float = field(default_factory=now)  # seconds since 1970
    title: str = ""  # the user's name for it

    @property
    def name(self) -> str:
        """Short form of the id, for users."""
        return self.id[:8]


@dataclass(frozen=True)
class Point:
    """Values with the same step and time."""

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
    """Writer for one target. When a method returns, the operating system has the data."""

    def log(self, point: Point) -> None:
        """Add values."""

    def keep(self, item: Item) -> None:
        """Add a file or folder, or its path if this kind of target stores no files."""

    def annotate(self, category: str, values: Mapping[str, Any]) -> None:
        """Add values to a category of notes: inputs, outputs, tags, meta or run."""

    def end(self, status: str) -> None:
        """Close the run with a status: succeeded, failed or stopped."""


def moment(seconds: float) -> datetime:
    """Return a time in seconds since 1970 as a UTC datetime."""
    return datetime.fromtimestamp(seconds, tz=UTC)


class Steps:
    """Counts steps of each name from 0 if the user passes no step, for targets that need one."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def of(self, name: str, step: int | None) -> int:
        """Return the step, by default the successor of the name's previous step."""
        current = self._next.get(name, 0) if step is None else step
        self._next[name] = current + 1
        return current
