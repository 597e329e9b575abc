"""Polyaxon's layout of a run on disk, without a dependency; ``polyaxon ops upload`` and its sidecar take it from there.

Terms.
  root      POLYAXON_ARTIFACTS_ROOT, or what HVD_TRACK=polyaxon:ROOT says, or POLYAXON_OFFLINE_ROOT (/tmp/plx/offline)
  managed   Polyaxon itself runs this (POLYAXON_IS_MANAGED), and has made the folder of the run
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

OFFLINE = "/tmp/plx/offline"  # noqa: S108 - Polyaxon's own default
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
    """Tell whether Polyaxon runs this."""
    return env.get("POLYAXON_IS_MANAGED", "").lower() in {"1", "true", "t", "yes"}


class Polyaxon:
    """One folder."""

    def __init__(self, place: str, run: Run) -> None:
        self._folder = folder_of(place, run.id)
        (self._folder / plx.OUTPUTS).mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[bytes]] = {}
        self._metrics: set[str] = set()
        self._lineages: list[dict[str, Any]] = self._read(plx.LINEAGES, [])
        self._about: dict[str, Any] = self._read(plx.RUN, _begun(run))
        self._status("running", run.started)

    def log(self, point: Point) -> None:
        """Add a line to each metric's file."""
        for name, value in point.values.items():
            plain = plx.name_of(name)
            self._append(plx.event_path("metric", plain), plx.header("metric"), point, value)
            self._metrics.add(plain)

    def keep(self, item: Item) -> None:
        """Copy the file or folder: with a step among the assets, as one of its versions, else to the outputs."""
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
            about = json.dumps({**item.summary, "kind": item.kind, "path": place}, separators=(",", ":"))
            self._append(events, plx.header(item.kind), item, about)
            place, summary = events, {"is_event": True}
        self._lineages = [each for each in self._lineages if each["path"] != place or each["name"] != name]
        self._lineages.append(plx.lineage(name, item.kind, place, summary))
        self._write(plx.LINEAGES, self._lineages)
        if item.kind == MODEL:
            self.note("meta", {"has_model": True})

    def note(self, what: str, values: Mapping[str, Any]) -> None:
        """Add to the run's file."""
        if what == "tags":
            self._about["tags"] = list(dict.fromkeys([*self._about["tags"], *values]))
        elif what == "run":
            self._about.update(values)
        else:
            self._about.setdefault("meta_info" if what == "meta" else what, {}).update(values)
        self._write(plx.RUN, self._about)

    def end(self, status: str) -> None:
        """Write the summaries and how it ended."""
        self._close()
        for name in sorted(self._metrics):
            path = plx.event_path("metric", name)
            with (self._folder / path).open() as lines:
                summary = plx.metric_summary(lines)
            self._lineages = [each for each in self._lineages if each["path"] != path]
            self._lineages.append(plx.lineage(name, "metric", path, summary))
            self._about.setdefault("outputs", {})[name] = summary["metric"]["last"]
        if self._metrics:
            self._about.setdefault("meta_info", {}).update(has_metrics=True, has_events=True)
        self._write(plx.LINEAGES, self._lineages)
        self._about["finished_at"] = moment(now()).isoformat(timespec="microseconds")
        self._status(status, now())

    def _status(self, status: str, time: float) -> None:
        said = moment(time).isoformat(timespec="microseconds")
        condition = {"type": status, "status": True, "reason": "hvd_kernel", "message": f"Operation is {status}"}
        self._about["status"] = status
        self._about["status_conditions"].append({**condition, "last_update_time": said, "last_transition_time": said})
        self._write(plx.RUN, self._about)

    def _append(self, path: str, header: str, what: Point | Item, value: object) -> None:
        file = self._opened(path)
        begin = "" if file.tell() else header
        file.write((begin + plx.line(what.step, what.time, value)).encode())

    def _opened(self, path: str) -> IO[bytes]:
        """Return a file at its end; those of earlier calls stay open, but for a great many."""
        file = self._files.get(path)
        if file is None:
            self._close(MOST_FILES)
            whole = self._folder / path
            whole.parent.mkdir(parents=True, exist_ok=True)
            file = self._files[path] = whole.open("ab", buffering=0)
        return file

    def _close(self, at_least: int = 1) -> None:
        if len(self._files) >= at_least:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _copy(self, path: Path, target: Path) -> None:
        if path.resolve() == target.resolve():
            return  # written there by the user
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, target)

    def _read(self, name: str, default: Any) -> Any:
        file = self._folder / name
        return json.loads(file.read_text()) if file.exists() else default

    def _write(self, name: str, content: object) -> None:
        """Replace the file at once: who reads it finds one or the other."""
        file = self._folder / name
        beside = file.with_suffix(".part")
        beside.write_text(json.dumps(content, separators=(",", ":"), default=str))
        beside.replace(file)


def _begun(run: Run) -> dict[str, Any]:
    said = moment(run.started).isoformat(timespec="microseconds")
    created = {"type": "created", "status": True, "reason": "hvd_kernel", "message": "Operation is starting"}
    return {
        "uuid": run.id,
        "name": run.title or run.name,
        "tags": [],
        "created_at": said,
        "started_at": said,
        "managed_by": "user",
        "is_managed": False,
        "status": "created",
        "kind": "job",
        "runtime": "job",
        "status_conditions": [{**created, "last_update_time": said, "last_transition_time": said}],
    }


def _hash(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:12]
