"""The syntax of HVD_TRACK, the targets of ``hvd.log``: parses text into a choice. Pure.

    HVD_TRACK = off | on | WORD,WORD,...        WORD = KIND | KIND:PLACE | per-rank

Terms.
  kind    tensorboard, mlflow, polyaxon or jsonl
  place   folder for tensorboard and polyaxon, file for jsonl, tracking URI for mlflow; each kind has a default
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hvd_kernel.errors import ConfigError

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
