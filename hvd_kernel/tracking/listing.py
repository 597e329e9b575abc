"""The list of runs that ``%hvd track show`` prints: what sinks have written, a line of block characters per metric.

Read back from the files, so that it lists runs of other days and programs too. Of MLflow only a folder can be listed.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from hvd_kernel.tracking import mlflow, tfevents
from hvd_kernel.tracking.jsonlines import file_of
from hvd_kernel.tracking.polyaxon import folder_of
from hvd_kernel.tracking.sink import moment
from hvd_kernel.tracking.syntax import Choice, Target
from hvd_kernel.tracking.tensorboard import PATTERN

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 24
LATEST = 10
_HEAD = ("run", "from", "began", "metric", "values", "last", "")


@dataclass
class Seen:
    """A run as its files tell it."""

    name: str
    source: str
    began: float
    series: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        """Take one more value."""
        self.series.setdefault(name, []).append(value)


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Return a character for each value, or each mean of neighbours where there are more than fit."""
    size = max(1, math.ceil(len(values) / width))
    means = [_mean(values[at : at + size]) for at in range(0, len(values), size)]
    known = [mean for mean in means if math.isfinite(mean)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    return "".join(_block(mean, low, high) for mean in means)


def page(choice: Choice, latest: int = LATEST) -> str:
    """Return the table of the latest runs in the places of a choice."""
    if not choice.targets:
        return "nothing is tracked: %hvd track jsonl, or tensorboard, mlflow, polyaxon\n"
    found = sorted((seen for target in choice.targets for seen in runs(target)), key=lambda seen: -seen.began)
    if not found:
        return f"no runs yet in {choice}\n"
    rows = [_HEAD, *(row for seen in found[:latest] for row in _rows(seen))]
    more = f"{len(found) - latest} older runs are not shown\n" if len(found) > latest else ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows) + more


def runs(target: Target) -> list[Seen]:
    """Return the runs in one place; what cannot be read is left out."""
    return [seen for seen in _READERS[target.kind](target) if seen.series]


def _rows(seen: Seen) -> Iterator[tuple[str, ...]]:
    began = f"{moment(seen.began):%Y-%m-%d %H:%M:%S}"
    for number, (name, values) in enumerate(sorted(seen.series.items())):
        who = (seen.name, seen.source, began) if number == 0 else ("", "", "")
        yield (*who, name, str(len(values)), f"{values[-1]:.6g}", sparkline(values))


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "?"
    share = (value - low) / (high - low) if high > low else 0.0
    return BLOCKS[min(len(BLOCKS) - 1, int(share * len(BLOCKS)))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _jsonl(target: Target) -> list[Seen]:
    file = file_of(target.place)
    found: dict[str, Seen] = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            said = json.loads(line)
            began = datetime.fromisoformat(said["time"]).timestamp()
            seen = found.setdefault(said["run"], Seen(said["run"], str(target), began))
            for name, value in said.get("values", {}).items():
                seen.add(name, float(value))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # another program's line, or one that is being written
    return [*found.values()]


def _tensorboard(target: Target) -> Iterator[Seen]:
    for file in sorted(Path(target.place).expanduser().rglob(PATTERN)):
        seen = Seen(file.parent.name, str(target), file.stat().st_mtime)
        with contextlib.suppress(tfevents.DamagedFileError):  # what stands before that is shown
            for scalar in tfevents.scalars(file.read_bytes()):
                seen.began = min(seen.began, scalar.time)
                seen.add(scalar.tag, scalar.value)
        yield seen


def _polyaxon(target: Target) -> Iterator[Seen]:
    for folder in _folders(folder_of(target.place, "").glob("*")):
        seen = Seen(folder.name[:8], str(target), folder.stat().st_mtime)
        for file in sorted((folder / "events" / "metric").glob("*.plx")):
            for cells in (line.split("|") for line in file.read_text().splitlines()[1:]):
                with contextlib.suppress(ValueError):
                    _, time, value = cells
                    seen.began = min(seen.began, datetime.fromisoformat(time).timestamp())
                    seen.add(file.stem, float(value))
        yield seen


def _mlflow(target: Target) -> Iterator[Seen]:
    root = Path(mlflow.uri_of(target.place).removeprefix("file:")).expanduser()
    for folder in _folders(root.glob("*/*/metrics")):
        seen = Seen(folder.parent.name[:8], str(target), folder.stat().st_mtime)
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            for line in file.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    time, value, _ = line.split()
                    seen.began = min(seen.began, int(time) / 1000)
                    seen.add(str(file.relative_to(folder)), float(value))
        yield seen


def _folders(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_dir())


_READERS: dict[str, Callable[[Target], Iterable[Seen]]] = {
    "jsonl": _jsonl,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "polyaxon": _polyaxon,
}
