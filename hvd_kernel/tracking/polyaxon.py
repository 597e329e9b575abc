"""Sink for Polyaxon's file layout of a run, without a dependency; ``polyaxon ops upload`` or its sidecar uploads it.

Terms.
  root      ROOT of HVD_TRACK=polyaxon:ROOT, or POLYAXON_ARTIFACTS_ROOT, or POLYAXON_OFFLINE_ROOT (/tmp/plx/offline)
  managed   this process runs on Polyaxon (POLYAXON_IS_MANAGED), which has created the folder of the run
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from hvd_kernel.tracking import plx
from hvd_kernel.tracking.sink import MODEL, Item, Point, Run, moment, now

OFFLINE = "/tmp/plx/offline"  # noqa: S108 - Polyaxon's default
MANAGED = "/plx-context/artifacts"
MOST_FILES = 100
Env = Mapping[str, str]


def folder_of(place: str, run_id: str, env: Env = os.environ) -> Path:
    """Return the folder of a run."""
    if place:
        return Path(place).expanduser() / "runs" / run_id
    artifacts = env.get("POLYAXON_ARTIFACTS_ROOT") or (MANAGED if managed(env) else "")
    if artifacts:
        return Path(artifacts) / run_id
    return Path(env.get("POLYAXON_OFFLINE_ROOT") or OFFLINE) / "runs" / run_id


def managed(env: Env = os.environ) -> bool:
    """Return whether this process runs on Polyaxon."""
    return env.get("POLYAXON_IS_MANAGED", "").lower() in {"1", "true", "t", "yes"}


class Polyaxon:
    """Sink that writes the folder of a run."""

    def __init__(self, place: str, run: Run) -> None:
        self._folder = folder_of(place, run.id)
        (self._folder / plx.OUTPUTS).mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[bytes]] = {}
        self._metrics: set[str] = set()
        self._lineages: list[dict[str, Any]] = self._read(plx.LINEAGES, [])
        self._about: dict[str, Any] = self._read(plx.RUN, _initial(run))
        self._status("running", run.started)

    def log(self, point: Point) -> None:
        """Add a line to each metric's file."""
        for name, value in point.values.items():
            plain = plx.name_of(name)
            self._append(plx.event_path("metric", plain), plx.header("metric"), point, value)
            self._metrics.add(plain)

    def keep(self, item: Item) -> None:
        """Copy a file or folder to the outputs; with a step, to the assets as a version."""
        name = plx.name_of(item.name)
        if item.step is None:
            target = self._folder / plx.OUTPUTS / item.path.name
            self._copy(item.path, target)
            place = str(target.relative_to(self._folder))
            summary = {**item.summary, "path": str(target), "hash": _hash(target)}
        else:
            place = f"assets/{item.kind}/{name}_{item.step}{item.path.suffix}"
            self._copy(item.path, self._folder / place)
            events = plx.event_path(item.kind, name)
            value = json.dumps({**item.summary, "kind": item.kind, "path": place}, separators=(",", ":"))
            self._append(events, plx.header(item.kind), item, value)
            place, summary = events, {"is_event": True}
        self._lineages = [row for row in self._lineages if row["path"] != place or row["name"] != name]
        self._lineages.append(plx.lineage(name, item.kind, place, summary))
        self._write(plx.LINEAGES, self._lineages)
        if item.kind == MODEL:
            self.annotate("meta", {"has_model": True})

    def annotate(self, category: str, values: Mapping[str, Any]) -> None:
        """Add to the run's file."""
        if category == "tags":
            self._about["tags"] = list(dict.fromkeys([*self._about["tags"], *values]))
        elif category == "run":
            self._about.update(values)
        else:
            self._about.setdefault("meta_info" if category == "meta" else category, {}).update(values)
        self._write(plx.RUN, self._about)

    def end(self, status: str) -> None:
        """Write the summaries and the final status."""
        self._close()
        for name in sorted(self._metrics):
            path = plx.event_path("metric", name)
            with (self._folder / path).open() as lines:
                summary = plx.metric_summary(lines)
            self._lineages = [row for row in self._lineages if row["path"] != path]
            self._lineages.append(plx.lineage(name, "metric", path, summary))
            self._about.setdefault("outputs", {})[name] = summary["metric"]["last"]
        if self._metrics:
            self._about.setdefault("meta_info", {}).update(has_metrics=True, has_events=True)
        self._write(plx.LINEAGES, self._lineages)
        self._about["finished_at"] = moment(now()).isoformat(timespec="microseconds")
        self._status(status, now())

    def _status(self, status: str, time: float) -> None:
        text = moment(time).isoformat(timespec="microseconds")
        condition = {"type": status, "status": True, "reason": "hvd_kernel", "message": f"Operation is {status}"}
        self._about["status"] = status
        self._about["status_conditions"].append({**condition, "last_update_time": text, "last_transition_time": text})
        self._write(plx.RUN, self._about)

    def _append(self, path: str, header: str, event: Point | Item, value: object) -> None:
        file = self._open(path)
        begin = "" if file.tell() else header
        file.write((begin + plx.line(event.step, event.time, value)).encode())

    def _open(self, path: str) -> IO[bytes]:
        """Return a file opened for appending. Files stay open until there are ``MOST_FILES``."""
        file = self._files.get(path)
        if file is None:
            self._close(MOST_FILES)
            full_path = self._folder / path
            full_path.parent.mkdir(parents=True, exist_ok=True)
            file = self._files[path] = full_path.open("ab", buffering=0)
        return file

    def _close(self, at_least: int = 1) -> None:
        if len(self._files) >= at_least:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _copy(self, path: Path, target: Path) -> None:
        if path.resolve() == target.resolve():
            return  # the user has written it there
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, target)

    def _read(self, name: str, default: Any) -> Any:
        file = self._folder / name
        return json.loads(file.read_text()) if file.exists() else default

    def _write(self, name: str, content: object) -> None:
        """Replace a file atomically, for concurrent readers."""
        file = self._folder / name
        temporary = file.with_suffix(".part")
        temporary.write_text(json.dumps(content, separators=(",", ":"), default=str))
        temporary.replace(file)


def _initial(run: Run) -> dict[str, Any]:
    text = moment(run.started).isoformat(timespec="microseconds")
    created = {"type": "created", "status": True, "reason": "hvd_kernel", "message": "Operation is starting"}
    return {
        "uuid": run.id,
        "name": run.title or run.name,
        "tags": [],
        "created_at": text,
        "started_at": text,
        "managed_by": "user",
        "is_managed": False,
        "status": "created",
        "kind": "job",
        "runtime": "job",
        "status_conditions": [{**created, "last_update_time": text, "last_transition_time": text}],
    }


def _hash(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:12]
