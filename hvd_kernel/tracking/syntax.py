"""The syntax of HVD_TRACK: where to write what ``hvd.log`` is given. Text in, a value or a ConfigError out. Pure.

    HVD_TRACK = off | on | WORD,WORD,...        WORD = KIND | KIND:PLACE | per-rank

Terms.
  kind    tensorboard, mlflow, polyaxon or jsonl
  place   of tensorboard and polyaxon a folder, of jsonl a file, of mlflow a tracking URI; each kind has its own default
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hvd_kernel.errors import ConfigError

PLACES = {"tensorboard": "runs", "jsonl": "runs/metrics.jsonl", "mlflow": "", "polyaxon": ""}
"""Kind -> its default place; empty: what the environment says that its own library reads."""

PER_RANK = "per-rank"
OFF, ON = "off", "on"
_DEFAULT = "jsonl"
_HOW = "write off, on, or some of tensorboard:FOLDER, jsonl:FILE, mlflow:URI, polyaxon:FOLDER with commas"


class Target(NamedTuple):
    """One place to write to."""

    kind: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}" if self.place else self.kind


@dataclass(frozen=True)
class Choice:
    """Where to write, and whether every rank's own values are written beside their mean."""

    targets: tuple[Target, ...] = ()
    per_rank: bool = False

    def __str__(self) -> str:
        """Write it as HVD_TRACK takes it."""
        return ",".join([*map(str, self.targets), *([PER_RANK] if self.per_rank else [])]) if self.targets else OFF


def parse(text: str, name: str = "HVD_TRACK") -> Choice:
    """Return what the text chooses; empty text chooses nothing.

    Raises
    ------
    ConfigError
        A word is not understood, or is there twice; it is named, with what can be written.
    """
    words = [word for word in (part.strip() for part in text.split(",")) if word]
    if not words or words == [OFF]:
        return Choice()
    if OFF in words:
        raise ConfigError(f"{name}={text!r} cannot be used: {OFF} stands alone.")
    targets = [_target(word, text, name) for word in words if word != PER_RANK]
    if twice := next((each for each in targets if targets.count(each) > 1), None):
        raise ConfigError(f"{name}={text!r} cannot be used: {twice} appears twice.")
    return Choice(tuple(targets) or (_default(),), PER_RANK in words)


def absolute(choice: Choice, folder: Path) -> Choice:
    """Return the same with every path from the root: whoever reads it may be in another folder."""
    return replace(choice, targets=tuple(_absolute(target, folder) for target in choice.targets))


def _target(word: str, text: str, name: str) -> Target:
    kind, colon, place = word.partition(":")
    if word == ON:
        return _default()
    if kind not in PLACES:
        near = difflib.get_close_matches(kind, [*PLACES, PER_RANK, OFF, ON], n=1)
        meant = f": did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{name}={text!r} cannot be used: {kind!r} is not understood{meant}; {_HOW}.")
    if colon and not place:
        raise ConfigError(f"{name}={text!r} cannot be used: there is no place behind {word!r}; {_HOW}.")
    return Target(kind, place or PLACES[kind])


def _default() -> Target:
    return Target(_DEFAULT, PLACES[_DEFAULT])


def _absolute(target: Target, folder: Path) -> Target:
    if not target.place or re.match(r"\w[\w+.-]*:", target.place):  # none, or a URI
        return target
    slash = "/" if target.place.endswith("/") else ""
    return target._replace(place=str(folder / Path(target.place).expanduser()) + slash)
