"""Sinks for Polyaxon: its file layout of a run, without a dependency, or traceml if it is installed.

``polyaxon ops upload`` or its sidecar uploads the files; traceml also reports to Polyaxon's server.

Terms.
  root      ROOT of HVD_TRACK=polyaxon:ROOT, or POLYAXON_ARTIFACTS_ROOT, or POLYAXON_OFFLINE_ROOT (/tmp/plx/offline)
  managed   this process runs on Polyaxon (POLYAXON_IS_MANAGED), which has created the folder of the run
  events    events/metric/<name>.plx: a header, then a line per value, which starts with the newline;
            events/<kind>/<name>.plx: the same with a JSON value, for files with a step
  files     outputs/, and assets/<kind>/ for files with a step
  run       run.plx.json, and the index lineages.plx.json
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import math
import os
import re
import shutil
import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hvd_kernel.tracking.sink import MODEL, Item, Point, Run, moment, now

RUN, LINEAGES, OUTPUTS = "run.plx.json", "lineages.plx.json", "outputs"


def name_of(name: str) -> str:
    """Return the file name of a metric: ``loss__rank_1`` for ``loss/rank_1``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^\w\\/.\s-]", "", plain).strip()
    return re.sub(r"[-.\s]+", "-", re.sub(r"[\\/]+", "__", plain)) or "unnamed"


def event_path(kind: str, name: str) -> str:
    """Return the path of a file of events, relative to the run's folder."""
    return f"events/{kind}/{name}.plx"


def event_header(kind: str) -> str:
    """Return the first line of a file of events, without the newline."""
    return f"step|timestamp|{kind}"


def event_line(step: int | None, time: float, value: object) -> str:
    """Return an event; without a step its column is empty."""
    return f"\n{'' if step is None else step}|{moment(time).isoformat(' ', 'microseconds')}|{value}"


def metric_summary(lines: Iterable[str]) -> dict[str, Any]:
    """Return a metric's summary from the lines of its file: as pandas' ``describe``, with the last value."""
    steps = array("q")
    values = array("d")  # a long training has millions
    first = last = ""
    for text in lines:
        step, time, value = text.rstrip("\n").split("|")
        if value == "metric":
            continue  # the header
        first, last = first or time, time
        values.append(float(value))
        if step:
            steps.append(int(step))
    summary: dict[str, Any] = {"is_event": True}
    if steps:
        summary["step"] = {"count": len(steps), "min": min(steps), "max": max(steps)}
    summary["timestamp"] = {"min": first.replace(" ", "T"), "max": last.replace(" ", "T")}
    summary["metric"] = _describe(values)
    return summary


def lineage(name: str, kind: str, path: str, summary: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of lineages.plx.json."""
    return {"name": name, "kind": kind, "path": path, "summary": summary, "is_input": False}


def _describe(values: Sequence[float]) -> dict[str, float | None]:
    finite = sorted(value for value in values if math.isfinite(value))
    last = values[-1] if math.isfinite(values[-1]) else None
    if not finite:
        missing = dict.fromkeys(("mean", "std", "min", "25%", "50%", "75%", "max"))
        return {"count": 0.0, **missing, "last": last}
    mean = math.fsum(finite) / len(finite)
    deviation = (
        math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / (len(finite) - 1)) if finite[1:] else None
    )
    quarters = {f"{percent}%": _quantile(finite, percent / 100) for percent in (25, 50, 75)}
    described = {"mean": mean, "std": deviation, "min": finite[0], **quarters, "max": finite[-1]}
    return {"count": float(len(finite)), **described, "last": last}


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, with linear interpolation."""
    whole, part = divmod((len(values) - 1) * share, 1)
    low, high = values[int(whole)], values[min(int(whole) + 1, len(values) - 1)]
    return low + (high - low) * part


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
        (self._folder / OUTPUTS).mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[bytes]] = {}
        self._metrics: set[str] = set()
        self._lineages: list[dict[str, Any]] = self._read(LINEAGES, [])
        self._about: dict[str, Any] = self._read(RUN, _initial(run))
        self._status("running", run.started)

    def log(self, point: Point) -> None:
        """Add a line to each metric's file."""
        for name, value in point.values.items():
            plain = name_of(name)
            self._append(event_path("metric", plain), event_header("metric"), point, value)
            self._metrics.add(plain)

    def keep(self, item: Item) -> None:
        """Copy a file or folder to the outputs; with a step, to the assets as a version."""
        name = name_of(item.name)
        if item.step is None:
            target = self._folder / OUTPUTS / item.path.name
            self._copy(item.path, target)
            place = str(target.relative_to(self._folder))
            summary = {**item.summary, "path": str(target), "hash": _hash(target)}
        else:
            place = f"assets/{item.kind}/{name}_{item.step}{item.path.suffix}"
            self._copy(item.path, self._folder / place)
            events = event_path(item.kind, name)
            value = json.dumps({**item.summary, "kind": item.kind, "path": place}, separators=(",", ":"))
            self._append(events, event_header(item.kind), item, value)
            place, summary = events, {"is_event": True}
        self._lineages = [row for row in self._lineages if row["path"] != place or row["name"] != name]
        self._lineages.append(lineage(name, item.kind, place, summary))
        self._write(LINEAGES, self._lineages)
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
        self._write(RUN, self._about)

    def end(self, status: str) -> None:
        """Write the summaries and the final status."""
        self._close()
        for name in sorted(self._metrics):
            path = event_path("metric", name)
            with (self._folder / path).open() as lines:
                summary = metric_summary(lines)
            self._lineages = [row for row in self._lineages if row["path"] != path]
            self._lineages.append(lineage(name, "metric", path, summary))
            self._about.setdefault("outputs", {})[name] = summary["metric"]["last"]
        if self._metrics:
            self._about.setdefault("meta_info", {}).update(has_metrics=True, has_events=True)
        self._write(LINEAGES, self._lineages)
        self._about["finished_at"] = moment(now()).isoformat(timespec="microseconds")
        self._status(status, now())

    def _status(self, status: str, time: float) -> None:
        text = moment(time).isoformat(timespec="microseconds")
        condition = {"type": status, "status": True, "reason": "hvd_kernel", "message": f"Operation is {status}"}
        self._about["status"] = status
        self._about["status_conditions"].append({**condition, "last_update_time": text, "last_transition_time": text})
        self._write(RUN, self._about)

    def _append(self, path: str, header: str, event: Point | Item, value: object) -> None:
        file = self._open(path)
        begin = "" if file.tell() else header
        file.write((begin + event_line(event.step, event.time, value)).encode())

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
