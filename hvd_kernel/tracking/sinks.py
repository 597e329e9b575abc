"""All sinks of a run: a sink that fails is reported once and dropped, and the training continues."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.tracking import polyaxon
from hvd_kernel.tracking.jsonlines import JsonLines
from hvd_kernel.tracking.mlflow import MLflow
from hvd_kernel.tracking.polyaxon import Polyaxon
from hvd_kernel.tracking.sink import Item, Point, Run, Sink
from hvd_kernel.tracking.syntax import Choice, Target
from hvd_kernel.tracking.tensorboard import TensorBoard

_OURS = __name__.partition(".")[0] + "."
Open = Callable[[str, Run], Sink]


def _polyaxon(place: str, run: Run) -> Sink:
    return Polyaxon(place, run) if place or not polyaxon.installed() else polyaxon.Traceml(place, run)


SINKS: dict[str, Open] = {"tensorboard": TensorBoard, "jsonl": JsonLines, "mlflow": MLflow, "polyaxon": _polyaxon}

NEEDS = {"mlflow": ("mlflow", "mlflow-skinny")}
"""Kind -> the module that it needs, and the package to install."""


class Tracker:
    """Target of ``hvd.log``. Writes only while ``writes()`` is true, on rank 0; on other ranks it opens no sinks.

    ``writes`` is called each time, as another process may become rank 0 in an elastic job.
    """

    def __init__(self, choice: Choice, run: Run, writes: Callable[[], bool]) -> None:
        """Open the sinks.

        Raises
        ------
        ConfigError
            A package is not installed. Raised on every rank, including those that do not write.
        """
        for target in choice.targets:
            check(target)
        self.choice = choice
        self.run = run
        self.writes = writes
        self.ended = False
        self.dropped: list[str] = []  # messages of sinks that have failed
        self._opened: set[Target] = set()
        self._sinks: dict[Target, Sink] = {}
        self._open()

    def add(self, target: Target) -> None:
        """Add a target."""
        check(target)
        self.choice = replace(self.choice, targets=(*self.choice.targets, target))
        self._open()

    def log(self, point: Point) -> None:
        """Write values."""
        self._for_each(lambda sink: sink.log(point))

    def keep(self, item: Item) -> None:
        """Write a file or folder."""
        self._for_each(lambda sink: sink.keep(item))

    def annotate(self, category: str, values: Mapping[str, Any]) -> None:
        """Write inputs, outputs, tags or metadata."""
        self._for_each(lambda sink: sink.annotate(category, values))

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
            if target not in self._opened:
                self._opened.add(target)
                self._guarded(target, partial(self._begin, target))

    def _begin(self, target: Target) -> None:
        self._sinks[target] = SINKS[target.kind](target.place, self.run)

    def _for_each(self, action: Callable[[Sink], None]) -> None:
        if self.ended or not self.writes():
            return
        self._open()
        for target, sink in [*self._sinks.items()]:
            self._guarded(target, partial(action, sink))

    def _guarded(self, target: Target, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - no error of a sink stops the training
            self._sinks.pop(target, None)
            text = f"{target} failed and is dropped, the others go on: {type(error).__name__}: {error}"
            self.dropped.append(text)
            warnings.warn(f"tracking: {text}", stacklevel=_users_level())


def _users_level() -> int:
    """Return the ``stacklevel`` of the first caller outside this package, for warnings."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - inspect's is the same
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        level, frame = level + 1, frame.f_back
    return level


def check(target: Target) -> None:
    """Check that the package of a kind of target is installed.

    Raises
    ------
    ConfigError
        It is not installed; the message names the package.
    """
    module, package = NEEDS.get(target.kind, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"HVD_TRACK={target}: {module} is not installed in this Python: pip install {package}, "
            f"or track to tensorboard, jsonl or polyaxon, which need nothing."
        )
