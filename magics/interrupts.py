"""Interrupts while ranks work: presses of the key are counted, so that nothing is lost in the middle of a step.

What the key does in the kernel's own process is in hvd_kernel/kernel/interrupt_key.py.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from hvd_kernel.formatting.rank_labels import rank_list

_LAST = "ends only {them}, without {their} variables, and starts {fresh}"
_NEXT = (f"another interrupt is sent to {{them}} again, the one after it {_LAST}", f"another interrupt {_LAST}")
_ENDING = "ending {who}, without {their} variables, and starting {fresh}"
_WORDS = (
    {"them": "these", "their": "their", "fresh": "fresh ones"},
    {"them": "this one", "their": "its", "fresh": "a fresh one"},
)

SAME_S = 0.5
"""Interrupts this close together are one: the third of them ends ranks, and impatient fingers press twice."""


def not_responding(ranks: Collection[int], presses: int) -> str:
    """Return what the first or second interrupt of a cell has done about these ranks, and what the next one does."""
    again = " again" if presses > 1 else ""
    text = _NEXT[min(presses, len(_NEXT)) - 1].format(**_WORDS[len(ranks) == 1])
    return f"{rank_list(ranks)} interrupted{again} and not responding yet: {text}"


def ending(ranks: Collection[int]) -> str:
    """Return what the third interrupt does."""
    return _ENDING.format(who=rank_list(ranks), **_WORDS[len(ranks) == 1])


class InterruptCount:
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
def counted(interrupts: InterruptCount | None = None) -> Iterator[InterruptCount]:
    """Count SIGINTs instead of raising KeyboardInterrupt; off the main thread none arrive, but a job's cancel does."""
    interrupts = interrupts or InterruptCount()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupted(KeyboardInterrupt):
    """The cell was interrupted; what became of the ranks is its message."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mKeyboardInterrupt\x1b[0m: {self}"]


Interrupted.__name__ = "KeyboardInterrupt"  # the name by which front ends and tests know it
