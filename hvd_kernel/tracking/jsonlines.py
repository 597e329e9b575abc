"""JSON lines: one line per call, appended to one file, whatever run it is of.

    {"run": "3f2a91c0", "time": "2026-11-23T18:40:12.345678+00:00", "step": 10, "values": {"loss": 0.25}}

A number that JSON does not have is text: "NaN", "Infinity", "-Infinity"; ``float()`` takes these.
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
    """Return the file that a place means: a folder gets one of the default name."""
    path = Path(place).expanduser()
    return path / DEFAULT_NAME if place.endswith("/") or path.is_dir() else path


class JsonLines:
    """One file that grows."""

    def __init__(self, place: str, run: Run) -> None:
        path = file_of(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Appended by one call of the system: lines of several runs that write at once stay whole.
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._run = run

    def log(self, point: Point) -> None:
        """Write a line of values."""
        self._write(point.time, {"step": point.step, "values": {k: _number(v) for k, v in point.values.items()}})

    def keep(self, item: Item) -> None:
        """Write a line that says where the file is."""
        about = {"path": str(item.path), "name": item.name, "kind": item.kind, **item.summary}
        self._write(item.time, {"step": item.step, "artifact": about})

    def note(self, what: str, values: Mapping[str, Any]) -> None:
        """Write a line of notes."""
        self._write(now(), {"note": {what: dict(values)}})

    def end(self, status: str) -> None:
        """Write how the run ended."""
        self._write(now(), {"status": status})
        os.close(self._descriptor)

    def _write(self, time: float, rest: dict[str, Any]) -> None:
        line = {"run": self._run.name, "time": moment(time).isoformat(timespec="microseconds"), **rest}
        os.write(self._descriptor, json.dumps(line, default=str).encode() + b"\n")


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
