"""The interrupt key while ranks work: presses are counted, and nothing is lost in the middle of a step.

What the key does in the kernel's own process is in hvd_kernel/kernel/interrupt_key.py.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME_S = 0.5
"""Presses this close together are one: the third of them ends ranks, and impatient fingers press twice."""


class Presses:
    """How often the key was pressed."""

    def __init__(self) -> None:
        self.count = 0
        self._latest = float("-inf")

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        """Count one (a signal handler)."""
        now = time.monotonic()
        self.count += now - self._latest >= SAME_S
        self._latest = now


@contextmanager
def counted(presses: Presses | None = None) -> Iterator[Presses]:
    """Count SIGINTs instead of raising KeyboardInterrupt; off the main thread none arrive, but a job's cancel does."""
    presses = presses or Presses()
    if threading.current_thread() is not threading.main_thread():
        yield presses
        return
    before = signal.signal(signal.SIGINT, presses)
    try:
        yield presses
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupted(KeyboardInterrupt):
    """The cell was interrupted; what became of the ranks is its message."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mKeyboardInterrupt\x1b[0m: {self}"]


Interrupted.__name__ = "KeyboardInterrupt"  # the name by which front ends and tests know it
