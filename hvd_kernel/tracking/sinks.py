"""Sinks of a run as one: a sink that fails is named once and dropped, and the training goes on."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.tracking import traceml
from hvd_kernel.tracking.jsonlines import JsonLines
from hvd_kernel.tracking.mlflow import MLflow
from hvd_kernel.tracking.polyaxon import Polyaxon
from hvd_kernel.tracking.sink import Item, Point, Run, Sink
from hvd_kernel.tracking.syntax import Choice, Target
from hvd_kernel.tracking.tensorboard import TensorBoard

_OURS = __name__.partition(".")[0] + "."
Open = Callable[[str, Run], Sink]


def _polyaxon(place: str, run: Run) -> Sink:
    return Polyaxon(place, run) if place or not traceml.installed() else traceml.Traceml(place, run)


SINKS: dict[str, Open] = {"tensorboard": TensorBoard, "jsonl": JsonLines, "mlflow": MLflow, "polyaxon": _polyaxon}

NEEDS = {"mlflow": ("mlflow", "mlflow-skinny")}
"""Kind -> the module without which it is nothing, and what to install."""


class Tracker:
    """What ``hvd.log`` writes to. Where ``writes`` says no, as on ranks above 0, it takes everything and opens nothing.

    Asked at each call: where hosts come and go another process may become rank 0.
    """

    def __init__(self, choice: Choice, run: Run, writes: Callable[[], bool]) -> None:
        """Open the sinks.

        Raises
        ------
        ConfigError
            A kind's package is not installed: on every rank, whether it writes or not.
        """
        for target in choice.targets:
            check(target)
        self.choice = choice
        self.run = run
        self.writes = writes
        self.ended = False
        self.dropped: list[str] = []  # what was said of sinks that have failed
        self._begun: set[Target] = set()
        self._sinks: dict[Target, Sink] = {}
        self._open()

    def add(self, target: Target) -> None:
        """Write to one more place."""
        check(target)
        self.choice = replace(self.choice, targets=(*self.choice.targets, target))
        self._open()

    def log(self, point: Point) -> None:
        """Write values."""
        self._each(lambda sink: sink.log(point))

    def keep(self, item: Item) -> None:
        """Write a file or folder."""
        self._each(lambda sink: sink.keep(item))

    def note(self, what: str, values: Mapping[str, Any]) -> None:
        """Write inputs, outputs, tags or meta."""
        self._each(lambda sink: sink.note(what, values))

    def end(self, status: str) -> None:
        """Close all sinks. May be called again."""
        for target, sink in [*self._sinks.items()]:
            self._guarded(target, partial(sink.end, status))
        self._sinks.clear()
        self.ended = True

    def _open(self) -> None:
        if not self.writes():
            return
        for target in self.choice.targets:
            if target not in self._begun:
                self._begun.add(target)
                self._guarded(target, partial(self._begin, target))

    def _begin(self, target: Target) -> None:
        self._sinks[target] = SINKS[target.kind](target.place, self.run)

    def _each(self, act: Callable[[Sink], None]) -> None:
        if self.ended or not self.writes():
            return
        self._open()
        for target, sink in [*self._sinks.items()]:
            self._guarded(target, partial(act, sink))

    def _guarded(self, target: Target, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._sinks.pop(target, None)
            text = f"{target} failed and is dropped, the others go on: {type(error).__name__}: {error}"
            self.dropped.append(text)
            warnings.warn(f"tracking: {text}", stacklevel=_users_level())


def _users_level() -> int:
    """Return how many calls above its caller's the first is that is not of this package: a warning names its line."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - inspect's is the same
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        level, frame = level + 1, frame.f_back
    return level


def check(target: Target) -> None:
    """See that a kind's package is installed.

    Raises
    ------
    ConfigError
        It is not; the message says what to install.
    """
    module, package = NEEDS.get(target.kind, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"HVD_TRACK={target}: {module} is not installed in this Python: pip install {package}, "
            f"or track to tensorboard, jsonl or polyaxon, which need nothing."
        )
