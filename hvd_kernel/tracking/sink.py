"""Targets of a run's values and files: the interface of their sinks, and the syntax of HVD_TRACK. Pure.

    HVD_TRACK = off | on | WORD,WORD,...        WORD = KIND | KIND:PLACE | per-rank

Terms.
  sink     writer for one target; an error in any of its methods disables only that sink
  run      one training, with the same name in every sink
  point    the values of one call of ``hvd.log``, reduced over ranks
  item     a file or folder passed to ``hvd.log_model`` or ``hvd.log_artifact``
  notes    inputs, outputs, tags or metadata of the run, by name
  kind     tensorboard, mlflow, polyaxon or jsonl
  place    folder for tensorboard and polyaxon, file for jsonl, tracking URI for mlflow; each kind has a default
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hvd_kernel.errors import ConfigError

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


PLACES = {"tensorboard": "runs", "jsonl": "runs/metrics.jsonl", "mlflow": "", "polyaxon": ""}
"""Kind -> its default place; an empty place is taken from the environment variables of the kind's library."""

PER_RANK = "per-rank"
OFF, ON = "off", "on"
_DEFAULT = "jsonl"
_HOW = "write off, on, or some of tensorboard:FOLDER, jsonl:FILE, mlflow:URI, polyaxon:FOLDER with commas"


class Target(NamedTuple):
    """A target to write to."""

    kind: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}" if self.place else self.kind


@dataclass(frozen=True)
class Choice:
    """Targets, and whether the values of each rank are written in addition to their mean."""

    targets: tuple[Target, ...] = ()
    per_rank: bool = False

    def __str__(self) -> str:
        """Value of HVD_TRACK."""
        return ",".join([*map(str, self.targets), *([PER_RANK] if self.per_rank else [])]) if self.targets else OFF


def parse(text: str, name: str = "HVD_TRACK") -> Choice:
    """Parse the value of HVD_TRACK; an empty value is a choice without targets.

    Raises
    ------
    ConfigError
        A word is invalid or appears twice; the message has the word and the syntax.
    """
    words = [word for word in (part.strip() for part in text.split(",")) if word]
    if not words or words == [OFF]:
        return Choice()
    if OFF in words:
        raise ConfigError(f"{name}={text!r} cannot be used: {OFF} stands alone.")
    targets = [_target(word, text, name) for word in words if word != PER_RANK]
    if twice := next((target for target in targets if targets.count(target) > 1), None):
        raise ConfigError(f"{name}={text!r} cannot be used: {twice} appears twice.")
    return Choice(tuple(targets) or (_default(),), PER_RANK in words)


def absolute(choice: Choice, folder: Path) -> Choice:
    """Make all paths absolute, for processes with another working directory."""
    return replace(choice, targets=tuple(_absolute(target, folder) for target in choice.targets))


def _target(word: str, text: str, name: str) -> Target:
    kind, colon, place = word.partition(":")
    if word == ON:
        return _default()
    if kind not in PLACES:
        matches = difflib.get_close_matches(kind, [*PLACES, PER_RANK, OFF, ON], n=1)
        suggestion = f": did you mean {matches[0]}?" if matches else ""
        raise ConfigError(f"{name}={text!r} cannot be used: {kind!r} is not understood{suggestion}; {_HOW}.")
    if colon and not place:
        raise ConfigError(f"{name}={text!r} cannot be used: there is no place behind {word!r}; {_HOW}.")
    return Target(kind, place or PLACES[kind])


def _default() -> Target:
    return Target(_DEFAULT, PLACES[_DEFAULT])


def _absolute(target: Target, folder: Path) -> Target:
    if not target.place or re.match(r"\w[\w+.-]*:", target.place):  # empty, or a URI
        return target
    slash = "/" if target.place.endswith("/") else ""
    return target._replace(place=str(folder / Path(target.place).expanduser()) + slash)
