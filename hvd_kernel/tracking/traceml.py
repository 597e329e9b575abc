"""Polyaxon through traceml, where both are installed: it knows what Polyaxon's server wants besides the files."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from hvd_kernel.tracking.polyaxon import folder_of, managed
from hvd_kernel.tracking.sink import MODEL, Item, Point, Run, moment

PACKAGES = ("polyaxon", "traceml", "pandas")  # the last one is what offline runs need at their end


def installed() -> bool:
    """Tell whether traceml's tracking can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in PACKAGES)


class Traceml:
    """One run of theirs."""

    def __init__(self, place: str, run: Run) -> None:
        theirs = importlib.import_module("traceml.tracking.run").Run
        quiet = {"track_code": False, "track_env": False, "track_logs": False, "collect_resources": False}
        if managed():
            self._run = theirs(**quiet)
        else:
            folder = str(folder_of(place, run.id))
            self._run = theirs(run_uuid=run.id, is_offline=True, artifacts_path=folder, name=run.title, **quiet)

    def log(self, point: Point) -> None:
        """Add values."""
        self._run.log_metrics(step=point.step, timestamp=moment(point.time), **point.values)

    def keep(self, item: Item) -> None:
        """Copy the file or folder."""
        what: dict[str, Any] = {"path": str(item.path), "name": item.name, "step": item.step}
        if item.kind == MODEL:
            summary = dict(item.summary)
            self._run.log_model(**what, framework=summary.pop("framework", None), summary=summary)
        else:
            self._run.log_artifact(**what, kind=item.kind, summary=dict(item.summary))

    def note(self, what: str, values: Mapping[str, Any]) -> None:
        """Add to the run."""
        if what == "tags":
            self._run.log_tags(list(values))
        elif what in {"inputs", "outputs", "meta"}:
            getattr(self._run, f"log_{what}")(**values)

    def end(self, status: str) -> None:
        """Close the run."""
        getattr(self._run, f"log_{status}")()
        self._run.end()
