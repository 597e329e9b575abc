"""JSON lines: one line per call, appended to a file that all runs share.

    {"run": "3f2a91c0", "time": "2026-11-23T18:40:12.345678+00:00", "step": 10, "values": {"loss": 0.25}}

Numbers that JSON does not support are strings that ``float()`` accepts: "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvd_kernel.tracking.sink import Item, Point, Run, moment, now

DEFAULT_NAME = "metrics.jsonl"


def file_of(place: str) -> Path:
    """Return the file of a place; for a folder, the file with the default name in it."""
    path = Path(place).expanduser()
    return path / DEFAULT_NAME if place.endswith("/") or path.is_dir() else path


class JsonLines:
    """Sink that appends to a file."""

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
