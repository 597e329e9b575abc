"""Store of run records: a file of lines in the user's IPython folder, beside IPython's own history, bounded."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hvd_kernel.magics.history.run_record import RunRecord, read, written
from hvd_kernel.processes.private_dir import write_private

FILE = "hvd-runs.jsonl"
INSTEAD = "hvd-ipython-"
"""How the name of a folder begins that stands in for IPython's, as long as a kernel lives."""

MOST = 1000
"""Runs that are kept; the file is cut when it has half as many more."""


class History:
    """The runs of this user, of all kernels; where the folder cannot be written, those of this one."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._own: list[RunRecord] = []  # while there is no file
        self.problem = ""  # why there is none

    def keep_in(self, folder: Path) -> None:
        """Keep them there from here on; a folder that IPython has made because it has none goes with the kernel."""
        self._folder = folder
        named = os.environ.get("IPYTHONDIR", "")
        chosen = named and folder == Path(named) and not folder.name.startswith(INSTEAD)
        if folder.parent == Path(tempfile.gettempdir()) and not chosen:
            self.problem = "IPython's folder cannot be written"

    def add(self, record: RunRecord) -> RunRecord:
        """Keep a record, and return it with its number."""
        try:
            with self._locked() as file:
                records = _records(file)
                numbered = replace(record, number=1 + max((each.number for each in records), default=0))
                if len(records) >= MOST + MOST // 2:
                    write_private(file, "".join(map(written, records[-MOST:])).encode())
                with file.open("a") as out:
                    out.write(written(numbered))
                return numbered
        except OSError as error:
            self.problem = f"{error.strerror}: {error.filename}"
            numbered = replace(record, number=len(self._own) + 1)
            self._own = [*self._own, numbered][-MOST:]
            return numbered

    def records(self) -> list[RunRecord]:
        """Return them, the latest last."""
        if self._folder is not None and not self._own:
            with suppress(OSError):
                return _records(self._folder / FILE)
        return self._own

    @contextmanager
    def _locked(self) -> Iterator[Path]:
        """Keep other kernels from the file."""
        if self._folder is None:
            raise OSError(2, "there is no IPython folder", "")
        with (self._folder / f".{FILE}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._folder / FILE


def _records(file: Path) -> list[RunRecord]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [record for record in map(read, lines) if record is not None]
