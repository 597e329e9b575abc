"""A gate at which a test and the code of a cell wait for each other, without guessed times.

    with Gate(tmp_path) as gate:
        run = session.run(f"{gate.arrive}\\n{gate.hold}")
        gate.wait_for(0, 1)  # both ranks are inside
        ...  # and stay there
    drain(run)  # the end of the block opened the gate

``arrive`` and ``hold`` are one line each and bind no name.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Self

PATIENCE_S = 60.0


class Gate:
    """A gate made of files: one opens it, and one for each rank records its arrival."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / f"gate-{uuid.uuid4().hex}"
        self.arrive = f"open(f'{self._place}.{{rank}}', 'w').close()"
        self.hold = f"while not {self.is_open}: __import__('time').sleep(0.01)"

    @property
    def is_open(self) -> str:
        """An expression."""
        return f"__import__('os').path.exists({str(self._place)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def wait_for(self, *ranks: int) -> None:
        """Return when these ranks have arrived."""
        deadline = time.monotonic() + PATIENCE_S
        while late := [rank for rank in ranks if not Path(f"{self._place}.{rank}").exists()]:
            assert time.monotonic() < deadline, f"ranks {late} have not come within {PATIENCE_S:g} s"
            time.sleep(0.01)

    def open(self) -> None:
        """Open the gate for all ranks."""
        self._place.touch()
