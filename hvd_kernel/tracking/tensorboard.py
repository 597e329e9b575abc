"""TensorBoard: an event file of scalars in a separate folder for each run, without a dependency.

``tensorboard --logdir runs`` shows the runs. The format has no files and notes; other sinks store them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvd_kernel.tracking.sink import Item, Point, Run, Steps, moment
from hvd_kernel.tracking.tfevents import Scalar, scalar_event, version_event

PATTERN = "events.out.tfevents.*"


class TensorBoard:
    """Sink that writes an event file."""

    def __init__(self, place: str, run: Run) -> None:
        root = Path(place).expanduser()
        existing = sorted(root.glob(f"*_{run.name}"))  # another process of this run has created it
        folder = existing[-1] if existing else root / f"{moment(run.started):%Y%m%d-%H%M%S}_{run.name}"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{run.started:.0f}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = (folder / name).open("ab", buffering=0)
        self._file.write(version_event(run.started))
        self._steps = Steps()

    def log(self, point: Point) -> None:
        """Write a record per value."""
        records = (
            scalar_event(Scalar(point.time, self._steps.of(name, point.step), name, value))
            for name, value in point.values.items()
        )
        self._file.write(b"".join(records))

    def keep(self, item: Item) -> None:
        """Ignore the file: the format stores scalars only."""

    def annotate(self, category: str, values: Mapping[str, Any]) -> None:
        """Ignore the notes: the format stores scalars only."""

    def end(self, status: str) -> None:  # noqa: ARG002 - of the Protocol
        """Close the file."""
        self._file.close()
