"""The list of runs that ``%hvd track show`` prints, with a sparkline per metric.

Runs are read from the files of the sinks, so earlier runs and those of other programs are listed too. MLflow runs are
listed only if they are stored in a folder.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from hvd_kernel.tracking import sinks, tensorboard
from hvd_kernel.tracking.polyaxon import folder_of
from hvd_kernel.tracking.sink import Choice, Target, moment
from hvd_kernel.tracking.sinks import file_of
from hvd_kernel.tracking.tensorboard import PATTERN

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 24
LATEST = 10
_HEAD = ("run", "from", "began", "metric", "values", "last", "")


@dataclass
class TrackedRun:
    """A run read from its files."""

    name: str
    source: str
    began: float
    series: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        """Add a value."""
        self.series.setdefault(name, []).append(value)


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Return a character per value, or per mean of neighbouring values if there are more than the width."""
    size = max(1, math.ceil(len(values) / width))
    means = [_mean(values[start : start + size]) for start in range(0, len(values), size)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_block(mean, low, high) for mean in means)


def page(choice: Choice, latest: int = LATEST) -> str:
    """Return a table of the latest runs in the targets of a choice."""
    if not choice.targets:
        return "nothing is tracked: %hvd track jsonl, or tensorboard, mlflow, polyaxon\n"
    tracked = sorted((run for target in choice.targets for run in runs(target)), key=lambda run: -run.began)
    if not tracked:
        return f"no runs yet in {choice}\n"
    rows = [_HEAD, *(row for run in tracked[:latest] for row in _rows(run))]
    more = f"{len(tracked) - latest} older runs are not shown\n" if len(tracked) > latest else ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows) + more


def runs(target: Target) -> list[TrackedRun]:
    """Return the readable runs of a target that contain values."""
    return [run for run in _READERS[target.kind](target) if run.series]


def _rows(run: TrackedRun) -> Iterator[tuple[str, ...]]:
    began = f"{moment(run.began):%Y-%m-%d %H:%M:%S}"
    for number, (name, values) in enumerate(sorted(run.series.items())):
        columns = (run.name, run.source, began) if number == 0 else ("", "", "")
        yield (*columns, name, str(len(values)), f"{values[-1]:.6g}", sparkline(values))


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "?"
    share = (value - low) / (high - low) if high > low else 0.0
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _jsonl(target: Target) -> list[TrackedRun]:
    file = file_of(target.place)
    tracked: dict[str, TrackedRun] = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            row = json.loads(line)
            began = datetime.fromisoformat(row["time"]).timestamp()
            run = tracked.setdefault(row["run"], TrackedRun(row["run"], str(target), began))
            for name, value in row.get("values", {}).items():
                run.add(name, float(value))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # another program's line, or one that is being written
    return [*tracked.values()]


def _tensorboard(target: Target) -> Iterator[TrackedRun]:
    for file in sorted(Path(target.place).expanduser().rglob(PATTERN)):
        run = TrackedRun(file.parent.name, str(target), file.stat().st_mtime)
        with contextlib.suppress(tensorboard.DamagedFileError):  # values before the damage are shown
            for scalar in tensorboard.scalars(file.read_bytes()):
                run.began = min(run.began, scalar.time)
                run.add(scalar.tag, scalar.value)
        yield run


def _polyaxon(target: Target) -> Iterator[TrackedRun]:
    for folder in _folders(folder_of(target.place, "").glob("*")):
        run = TrackedRun(folder.name[:8], str(target), folder.stat().st_mtime)
        for file in sorted((folder / "events" / "metric").glob("*.plx")):
            for cells in (line.split("|") for line in file.read_text().splitlines()[1:]):
                with contextlib.suppress(ValueError):
                    _, time, value = cells
                    run.began = min(run.began, datetime.fromisoformat(time).timestamp())
                    run.add(file.stem, float(value))
        yield run


def _mlflow(target: Target) -> Iterator[TrackedRun]:
    root = Path(sinks.uri_of(target.place).removeprefix("file:")).expanduser()
    for folder in _folders(root.glob("*/*/metrics")):
        run = TrackedRun(folder.parent.name[:8], str(target), folder.stat().st_mtime)
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            for line in file.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    time, value, _ = line.split()
                    run.began = min(run.began, int(time) / 1000)
                    run.add(str(file.relative_to(folder)), float(value))
        yield run


def _folders(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_dir())


_READERS: dict[str, Callable[[Target], Iterable[TrackedRun]]] = {
    "jsonl": _jsonl,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "polyaxon": _polyaxon,
}
