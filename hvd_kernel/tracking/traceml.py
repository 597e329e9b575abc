"""Polyaxon through traceml, if both are installed: traceml also reports to Polyaxon's server."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from hvd_kernel.tracking.polyaxon import folder_of, managed
from hvd_kernel.tracking.sink import MODEL, Item, Point, Run, moment

PACKAGES = ("polyaxon", "traceml", "pandas")  # traceml needs pandas at the end of an offline run


def installed() -> bool:
    """Return whether traceml's tracking can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


class Traceml:
    """Sink that writes a run with traceml."""

    def __init__(self, place: str, run: Run) -> None:
        run_class = importlib.import_module("traceml.tracking.run").Run
        quiet = {"track_code": False, "track_env": False, "track_logs": False, "collect_resources": False}
        if managed():
            self._run = run_class(**quiet)
        else:
            folder = str(folder_of(place, run.id))
            self._run = run_class(run_uuid=run.id, is_offline=True, artifacts_path=folder, name=run.title, **quiet)

    def log(self, point: Point) -> None:
        """Add values."""
        self._run.log_metrics(step=point.step, timestamp=moment(point.time), **point.values)

    def keep(self, item: Item) -> None:
        """Copy the file or folder."""
        arguments: dict[str, Any] = {"path": str(item.path), "name": item.name, "step": item.step}
        if item.kind == MODEL:
            summary = dict(item.summary)
            self._run.log_model(**arguments, framework=summary.pop("framework", None), summary=summary)
        else:
            self._run.log_artifact(**arguments, kind=item.kind, summary=dict(item.summary))

    def annotate(self, category: str, values: Mapping[str, Any]) -> None:
        """Add to the run."""
        if category == "tags":
            self._run.log_tags(list(values))
        elif category in {"inputs", "outputs", "meta"}:
            getattr(self._run, f"log_{category}")(**values)

    def end(self, status: str) -> None:
        """Close the run."""
        getattr(self._run, f"log_{status}")()
        self._run.end()
