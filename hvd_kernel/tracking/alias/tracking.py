"""Stand-in for Polyaxon's ``tracking`` module: the same calls on every rank write a single run.

The values of rank 0 are written in Polyaxon's layout and to the targets of HVD_TRACK; the calls of other ranks have no
effect. Values are not reduced and no rank waits, so calls guarded by ``if hvd.rank() == 0`` work too.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hvd_kernel.tracking import process
from hvd_kernel.tracking.sink import FILE, MODEL, Item, Point, now

_PREFIXES = ("log_", "set_", "get_", "sync_")
_warned: set[str] = set()


def init(*_args: Any, **options: Any) -> Any:
    """Start the run. Uses the arguments name, description, tags, owner and project, and ignores the others."""
    details = {key: options[key] for key in ("name", "description", "owner", "project") if options.get(key)}
    tracker = process.with_polyaxon()
    if details:
        tracker.annotate("run", details)
    if options.get("tags"):
        log_tags(options["tags"])
    return sys.modules[__name__]


def log_metric(name: str, value: float, step: int | None = None, timestamp: datetime | None = None) -> None:
    """Write a value."""
    process.with_polyaxon().log(Point({name: _number(value)}, _step(step), _seconds(timestamp)))


def log_metrics(step: int | None = None, timestamp: datetime | None = None, **metrics: float) -> None:
    """Write values with the same time."""
    values = {name: _number(value) for name, value in metrics.items()}
    process.with_polyaxon().log(Point(values, _step(step), _seconds(timestamp)))


def log_inputs(reset: bool = False, async_req: bool = True, **inputs: Any) -> None:
    """Write the run's parameters."""
    del reset, async_req  # of Polyaxon's signature
    process.with_polyaxon().annotate("inputs", inputs)


def log_outputs(reset: bool = False, async_req: bool = True, **outputs: Any) -> None:
    """Write the run's results."""
    del reset, async_req
    process.with_polyaxon().annotate("outputs", outputs)


def log_tags(tags: str | Sequence[str], reset: bool = False, async_req: bool = True) -> None:
    """Add tags."""
    del reset, async_req
    listed = [tag for part in tags.split(",") if (tag := part.strip())] if isinstance(tags, str) else tags
    process.with_polyaxon().annotate("tags", dict.fromkeys(listed, True))


def log_meta(reset: bool = False, async_req: bool = True, **meta: Any) -> None:
    """Add metadata to the run."""
    del reset, async_req
    process.with_polyaxon().annotate("meta", meta)


def log_progress(value: float) -> None:
    """Write the progress of the run, from 0 to 1."""
    log_meta(progress=value)


def log_model(
    path: str,
    name: str | None = None,
    framework: str | None = None,
    summary: dict[str, Any] | None = None,
    step: int | None = None,
    **_options: Any,
) -> None:
    """Copy a model."""
    _keep(path, name, MODEL, {"framework": framework, **(summary or {})} if framework else summary, step)


def log_artifact(
    path: str,
    name: str | None = None,
    kind: str | None = None,
    summary: dict[str, Any] | None = None,
    step: int | None = None,
    **_options: Any,
) -> None:
    """Copy a file or folder."""
    _keep(path, name, kind or FILE, summary, step)


def get_outputs_path(
    rel_path: str | None = None, ensure_path: bool = True, is_dir: bool = False, **_options: Any
) -> str:
    """Return the run's folder for the program's files, or a path in it; the same on all ranks."""
    process.with_polyaxon()
    return _ensured(process.outputs() / (rel_path or ""), is_dir=is_dir, ensure=ensure_path and bool(rel_path))


def get_artifacts_path(
    rel_path: str | None = None, ensure_path: bool = False, is_dir: bool = False, **_options: Any
) -> str:
    """Return the run's folder, or a path in it."""
    process.with_polyaxon()
    return _ensured(process.outputs().parent / (rel_path or ""), is_dir=is_dir, ensure=ensure_path)


def get_tensorboard_path(rel_path: str = "tensorboard", **_options: Any) -> str:
    """Return the folder for the program's event files."""
    return get_outputs_path(rel_path, is_dir=True)


def log_succeeded(*_args: Any, **_options: Any) -> None:
    """Close the run."""
    process.end("succeeded")


def log_failed(*_args: Any, **_options: Any) -> None:
    """Close the run."""
    process.end("failed")


def log_stopped(*_args: Any, **_options: Any) -> None:
    """Close the run."""
    process.end("stopped")


def end() -> None:
    """Close the run if it is open."""
    process.end()


def __getattr__(name: str) -> Any:
    """Return a function that only warns, once, for functions of Polyaxon that are not implemented."""
    if name == "TRACKING_RUN":
        return sys.modules[__name__]
    if name == "run_uuid":
        return process.run_id()
    if not name.startswith(_PREFIXES):
        raise AttributeError(f"module 'polyaxon.tracking' of hvd_kernel has no attribute {name!r}")
    return _unsupported(name)


def _unsupported(name: str) -> Callable[..., None]:
    def call(*_args: Any, **_options: Any) -> None:
        if name not in _warned and process.rank() == 0:
            _warned.add(name)
            reason = (
                "hvd_kernel stands in for polyaxon, which is not installed, and has no such call: pip install polyaxon"
            )
            warnings.warn(f"tracking.{name} does nothing: {reason}", stacklevel=2)

    return call


def _keep(path: str, name: str | None, kind: str, summary: dict[str, Any] | None, step: int | None) -> None:
    file = Path(path)
    process.with_polyaxon().keep(Item(file, name or file.stem, kind, _step(step), summary or {}))


def _number(value: Any) -> float:
    item = getattr(value, "item", None)
    return float(value if item is None else item())


def _step(step: Any) -> int | None:
    return None if step is None else int(_number(step))


def _seconds(timestamp: datetime | None) -> float:
    return now() if timestamp is None else timestamp.timestamp()


def _ensured(path: Path, *, is_dir: bool, ensure: bool) -> str:
    if ensure:
        (path if is_dir else path.parent).mkdir(parents=True, exist_ok=True)
    return os.fspath(path)
