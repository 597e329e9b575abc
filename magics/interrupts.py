"""Interrupts while ranks work: the key presses are counted, and the loop around the run handles each between two steps.

The effect of the key on the kernel's own process is in hvd_kernel/kernel/interrupt_key.py.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from hvd_kernel.formatting.rank_labels import rank_list

_LAST = "ends only {them} and starts {new}; {their} variables are lost"
_NEXT = (f"another interrupt is sent to {{them}} again, the one after it {_LAST}", f"another interrupt {_LAST}")
_ENDING = "ending {ranks} and starting {new}; {their} variables are lost"
_WORDS = (
    {"them": "these", "their": "their", "new": "new ones"},
    {"them": "this one", "their": "its", "new": "a new one"},
)

SAME_S = 0.5
"""Interrupts this close together count once: the third one kills ranks, and users press twice by accident."""


def not_responding(ranks: Collection[int], presses: int) -> str:
    """Return the effect of the first or second interrupt of a cell on these ranks, and of the next one."""
    again = " again" if presses > 1 else ""
    text = _NEXT[min(presses, len(_NEXT)) - 1].format(**_WORDS[len(ranks) == 1])
    return f"{rank_list(ranks)} interrupted{again} and not responding yet: {text}"


def ending(ranks: Collection[int]) -> str:
    """Return the notice of the third interrupt, which replaces these ranks."""
    return _ENDING.format(ranks=rank_list(ranks), **_WORDS[len(ranks) == 1])


Handler = Callable[[int, FrameType | None], object]


class InterruptCount:
    """Counter of the key presses; a signal handler."""

    def __init__(self) -> None:
        self.count = 0
        self._latest = float("-inf")

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        """Count a press."""
        self.count += not self.is_repeated()

    def is_repeated(self) -> bool:
        """Record a press; return whether it counts as one with the previous press."""
        now = time.monotonic()
        is_repeated, self._latest = now - self._latest < SAME_S, now
        return is_repeated


@dataclass(frozen=True)
class _AfterCell:
    """Signal handler after an interrupted cell: passes presses on, except those that repeat a counted one.

    Raised between the ranks' end and the cell's error, a repeated press would replace that error.
    """

    interrupts: InterruptCount
    handler: Handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.interrupts.is_repeated():
            self.handler(number, frame)


@contextmanager
def counted(interrupts: InterruptCount | None = None) -> Iterator[InterruptCount]:
    """Count SIGINTs instead of raising KeyboardInterrupt; in a job's thread only %hvdcancel counts.

    After an interrupted block, until ``restoring_handler``, the previous handler gets only presses that do not repeat a
    counted one.
    """
    interrupts = interrupts or InterruptCount()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts)
    if isinstance(before, _AfterCell):
        before = before.handler
    try:
        yield interrupts
    finally:
        if interrupts.count and callable(before) and not isinstance(before, InterruptCount):
            before = _AfterCell(interrupts, before)
        signal.signal(signal.SIGINT, before)


@contextmanager
def restoring_handler() -> Iterator[None]:
    """Restore the handler from before ``counted`` at the end: the error of the cell is being raised."""
    try:
        yield
    finally:
        handler = signal.getsignal(signal.SIGINT)
        if isinstance(handler, _AfterCell) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler.handler)


class Interrupted(KeyboardInterrupt):
    """The cell was interrupted; the message says what became of the ranks."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mKeyboardInterrupt\x1b[0m: {self}"]


Interrupted.__name__ = "KeyboardInterrupt"  # the name that front ends and tests expect
