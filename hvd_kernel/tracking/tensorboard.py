"""TensorBoard: an event file of scalars in a folder of its own for each run, without a dependency.

``tensorboard --logdir runs`` shows them. Files and notes have no place there: the other sinks keep those.
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
    """One event file."""

    def __init__(self, place: str, run: Run) -> None:
        root = Path(place).expanduser()
        here = sorted(root.glob(f"*_{run.name}"))  # where another process has begun this run
        folder = here[-1] if here else root / f"{moment(run.started):%Y%m%d-%H%M%S}_{run.name}"
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
        """Do nothing: see above."""

    def note(self, what: str, values: Mapping[str, Any]) -> None:
        """Do nothing: see above."""

    def end(self, status: str) -> None:  # noqa: ARG002 - of the Protocol
        """Close the file."""
        self._file.close()
