"""History of runs: the figures of cells that trained, of all kernels of a user, one line of JSON for each.

The file lies in the user's IPython folder, beside IPython's own history, and is bounded.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hvd_kernel.processes.private_dir import write_private

Curve = tuple[Sequence[float], Sequence[float | None]]
"""Seconds since the start of the cell, and the mean of the ranks at each."""


@dataclass(frozen=True)
class CellRecord:
    """The figures of one run."""

    number: int = 0  # in the order of their ends; 0: not stored yet
    time: float = 0.0  # of its end, seconds since 1970
    place: str = ""  # the notebook's folder
    commit: str = ""  # of the repository there
    cell: int = 0
    source: str = ""  # digest of the cell's code
    state: str = "done"
    ranks: tuple[int, ...] = ()
    seconds: float = 0.0
    steps: int = 0
    samples_per_s: float | None = None  # of all ranks together
    bus: float | None = None  # bus bandwidth in GB/s
    exposed: float | None = None  # share of the time, of communication that no computation hides
    logged: Mapping[str, float | str | None] = field(default_factory=dict)  # last values, means of the ranks
    curves: Mapping[str, Curve] = field(default_factory=dict)


def digest(code: str) -> str:
    """Return twelve digits of the code's SHA-256, without surrounding blank lines."""
    return hashlib.sha256(code.strip().encode()).hexdigest()[:12]


def of_summary(summary: Mapping[str, Any], curves: Mapping[str, Curve]) -> CellRecord:
    """Return the record of a dashboard's figures (``summary`` of widgets/board.py)."""
    return CellRecord(
        ranks=tuple(summary["ranks"]),
        seconds=round(summary["seconds"], 2),
        steps=summary["steps"],
        samples_per_s=summary["samples_per_s"]["total"],
        bus=summary["bus_gbps"],
        exposed=summary["exposed_share"],
        logged=summary["logged"],
        curves=curves,
    )


def to_line(record: CellRecord) -> str:
    """Return the record as a line of JSON."""
    return json.dumps(asdict(record), separators=(",", ":")) + "\n"


def from_line(line: str) -> CellRecord | None:
    """Return the record of a line; None if it is invalid or incomplete. Fields of newer versions are ignored."""
    try:
        content = json.loads(line)
        values = {field.name: content[field.name] for field in fields(CellRecord) if field.name in content}
        return replace(CellRecord(**values), number=int(content["number"]), ranks=tuple(content["ranks"]))
    except (ValueError, TypeError, KeyError):
        return None


FILE = "hvd-runs.jsonl"
INSTEAD = "hvd-ipython-"
"""Prefix of the temporary folder that replaces IPython's during the life of a kernel."""

MOST = 1000
"""Runs that are kept; the file is truncated when it has 50 % more."""


class History:
    """The runs of all kernels of this user; if the folder is not writable, those of this kernel."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._unsaved: list[CellRecord] = []  # while the file cannot be written
        self.problem = ""  # why the file cannot be written

    def keep_in(self, folder: Path) -> None:
        """Store runs in this folder; ``problem`` reports IPython's temporary one, which is deleted with the kernel."""
        self._folder = folder
        named = os.environ.get("IPYTHONDIR", "")
        chosen = named and folder == Path(named) and not folder.name.startswith(INSTEAD)
        if folder.parent == Path(tempfile.gettempdir()) and not chosen:
            self.problem = "IPython's folder cannot be written"

    def add(self, record: CellRecord) -> CellRecord:
        """Store a record, and return it with its number."""
        try:
            with self._locked() as file:
                records = _records(file)
                numbered = replace(record, number=1 + max((earlier.number for earlier in records), default=0))
                if len(records) >= MOST + MOST // 2:
                    write_private(file, "".join(map(to_line, records[-MOST:])).encode())
                with file.open("a") as out:
                    out.write(to_line(numbered))
                return numbered
        except OSError as error:
            self.problem = f"{error.strerror}: {error.filename}"
            numbered = replace(record, number=len(self._unsaved) + 1)
            self._unsaved = [*self._unsaved, numbered][-MOST:]
            return numbered

    def records(self) -> list[CellRecord]:
        """Return the records, oldest first."""
        if self._folder is not None and not self._unsaved:
            with suppress(OSError):
                return _records(self._folder / FILE)
        return self._unsaved

    @contextmanager
    def _locked(self) -> Iterator[Path]:
        """Lock the file against other kernels, and yield its path."""
        if self._folder is None:
            raise OSError(2, "there is no IPython folder", "")
        with (self._folder / f".{FILE}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._folder / FILE


def _records(file: Path) -> list[CellRecord]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [record for record in map(from_line, lines) if record is not None]


_PATIENCE_S = 2.0


def commit(place: str) -> str:
    """Return the git commit of a folder's repository; "" without a repository, or without git."""
    command = ["git", "-C", place, "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)  # noqa: S603 - the notebook's own folder
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
