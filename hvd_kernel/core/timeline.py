"""Timeline of this process's engines: the file that rank 0 writes, and its continuation after a reset.

The functions of the API are in ``session``, which owns the engine.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_kernel.errors import HorovodInternalError

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

_LOG = logging.getLogger("hvd_kernel")


@dataclass
class Timeline:
    """The newest timeline of this process."""

    path: str = ""
    marks_cycles: bool = False
    is_running: bool = False
    was_running: bool = False  # at the last shutdown

    def start(self, engine: Engine, file_path: str, *, marks_cycles: bool, shares_files: bool) -> None:
        """Start a timeline; ``shares_files``: this rank sees the files of rank 0, which writes it.

        Raises
        ------
        ValueError
            The file cannot be written.
        """
        path = os.fspath(file_path)
        if shares_files and (reason := _why_unwritable(Path(path))):
            raise ValueError(f"the timeline {path} cannot be written: {reason}.")
        engine.start_timeline(path, marks_cycles)
        self._record(path, marks_cycles=marks_cycles)

    def stop(self, engine: Engine) -> None:
        """Stop the timeline, if one is running."""
        engine.stop_timeline()
        self.is_running = False

    def pause(self) -> None:
        """Record that the engine shuts down; a reset continues a timeline that is running now."""
        self.was_running, self.is_running = self.is_running, False

    def at_start(self, options: dict[str, str], *, again: bool) -> tuple[str, bool] | None:
        """Return path and ``marks_cycles`` of the timeline of an engine to be made; None: it has none.

        A new engine starts the timeline itself, by its options. After a reset (``again``) the option is removed, and
        ``resume`` continues the timeline that was running.
        """
        path, marks_cycles = options.get("timeline", ""), options.get("mark_cycles") == "1"
        if again:
            options.pop("timeline", None)
            if self.was_running:
                path, marks_cycles = self.path, self.marks_cycles
        return (path, marks_cycles) if path else None

    def resume(self, engine: Engine, path: str, marks_cycles: bool, *, again: bool) -> None:
        """Record the timeline of a new engine; after a reset, continue it in its file."""
        try:
            if again:
                engine.start_timeline(path, marks_cycles, goes_on=True)
        except HorovodInternalError as error:  # for example, the engine cannot open the file
            _LOG.warning("%s", error)
            return
        self._record(path, marks_cycles=marks_cycles)

    def _record(self, path: str, *, marks_cycles: bool) -> None:
        self.path, self.marks_cycles, self.is_running = str(Path(path).absolute()), marks_cycles, True


def _why_unwritable(path: Path) -> str:
    """Return why a file cannot be written; "" if it can."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}; make it first"
    if path.is_dir():
        return "it is a folder; name a file in it"
    return "" if os.access(path if path.exists() else path.parent, os.W_OK) else "this user may not write there"
