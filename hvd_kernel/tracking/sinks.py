"""All sinks of a run, and those that need no file of their own: JSON lines, and MLflow through its package.

A sink that fails is reported once and dropped, and the training continues.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.tracking import polyaxon
from hvd_kernel.tracking.polyaxon import Polyaxon
from hvd_kernel.tracking.sink import MODEL, Choice, Item, Point, Run, Sink, Steps, Target, moment, now
from hvd_kernel.tracking.tensorboard import TensorBoard

_OURS = __name__.partition(".")[0] + "."
Open = Callable[[str, Run], Sink]


def file_of(place: str) -> Path:
    """Return the file of a place; for a folder, the file with the default name in it."""
    path = Path(place).expanduser()
    return path / DEFAULT_NAME if place.endswith("/") or path.is_dir() else path


class JsonLines:
    """Sink that appends one line per call to a file that all runs share.

        {"run": "3f2a91c0", "time": "2026-11-23T18:40:12.345678+00:00", "step": 10, "values": {"loss": 0.25}}

    Numbers that JSON does not support are strings that ``float()`` accepts: "NaN", "Infinity", "-Infinity".
    """

    def __init__(self, place: str, run: Run) -> None:
        path = file_of(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        # One system call per line: lines of runs that write at the same time do not mix.
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._run = run

    def log(self, point: Point) -> None:
        """Write a line of values."""
        self._write(point.time, {"step": point.step, "values": {k: _number(v) for k, v in point.values.items()}})

    def keep(self, item: Item) -> None:
        """Write a line with the path of the file."""
        artifact = {"path": str(item.path), "name": item.name, "kind": item.kind, **item.summary}
        self._write(item.time, {"step": item.step, "artifact": artifact})

    def annotate(self, category: str, values: Mapping[str, Any]) -> None:
        """Write a line of notes."""
        self._write(now(), {"note": {category: dict(values)}})

    def end(self, status: str) -> None:
        """Write the final status of the run."""
        self._write(now(), {"status": status})
        os.close(self._descriptor)

    def _write(self, time: float, rest: dict[str, Any]) -> None:
        line = {"run": self._run.name, "time": moment(time).isoformat(timespec="microseconds"), **rest}
        os.write(self._descriptor, json.dumps(line, default=str).encode() + b"\n")


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


FOLDER = "mlruns"
_STATUS = {"succeeded": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
_NOT_IN_A_NAME = re.compile(r"[^\w\-. :/]")


def uri_of(place: str) -> str:
    """Return the tracking URI: the place, MLFLOW_TRACKING_URI, or the default folder."""
    return place or os.environ.get("MLFLOW_TRACKING_URI", "") or FOLDER


class MLflow:
    """Sink that writes a run of an MLflow experiment, through ``pip install mlflow-skinny``.

    The default URI is MLFLOW_TRACKING_URI. MLflow 3 refuses a file store (``mlflow:mlruns``) unless
    MLFLOW_ALLOW_FILE_STORE=true, which this sink sets for one. MLFLOW_EXPERIMENT_NAME names the experiment,
    MLFLOW_RUN_ID a run to continue.
    """

    def __init__(self, place: str, run: Run) -> None:
        uri = uri_of(place)
        if "://" not in uri or uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow = importlib.import_module("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._id = os.environ.get("MLFLOW_RUN_ID") or self._create(run)
        self._steps = Steps()

    def _create(self, run: Run) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        experiment_of_name = self._client.get_experiment_by_name(name)
        experiment = (
            self._client.create_experiment(name) if experiment_of_name is None else experiment_of_name.experiment_id
        )
        created = self._client.create_run(experiment, run_name=run.title or run.name, tags={"hvd.run": run.id})
        return str(created.info.run_id)

    def log(self, point: Point) -> None:
        """Send values as a batch."""
        milliseconds = int(point.time * 1000)
        metrics = [
            self._metric(_NOT_IN_A_NAME.sub("_", name), value, milliseconds, self._steps.of(name, point.step))
            for name, value in point.values.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def keep(self, item: Item) -> None:
        """Copy the file or folder to the run's artifacts; a model to ``model/``."""
        send = self._client.log_artifacts if item.path.is_dir() else self._client.log_artifact
        send(self._id, str(item.path), MODEL if item.kind == MODEL else None)

    def annotate(self, category: str, values: Mapping[str, Any]) -> None:
        """Add inputs as parameters, everything else as tags."""
        for name, value in values.items():
            if category == "inputs":
                self._client.log_param(self._id, name, value)
            else:
                self._client.set_tag(self._id, f"{category}.{name}", value)

    def end(self, status: str) -> None:
        """Close the run."""
        self._client.set_terminated(self._id, _STATUS.get(status, "FINISHED"))


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


DEFAULT_NAME = "metrics.jsonl"
