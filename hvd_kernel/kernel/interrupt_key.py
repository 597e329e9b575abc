"""Interrupt handler of the notebook's own kernel: it raises in the user's code, never beside it.

ipykernel raises KeyboardInterrupt wherever the main thread is while it answers a request. Between taking a cell and
running it, or while the reply is written, nobody catches it: the cell gets no reply, and shows as running for ever.
What the key does to the ranks of a cell is in magics/interrupts.py.

Terms.
  beside    in IPython's or ipykernel's own code; a press that comes there waits for the user's next statement in the
            same cell, and is forgotten with the cell
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell


class Interrupts:
    """Where the main thread is, and whether a press waits. Subshells are other threads: no signal reaches them."""

    def __init__(self) -> None:
        self._inside = False
        self._waiting = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Take a press (a signal handler)."""
        if self._inside:
            raise KeyboardInterrupt
        self._waiting = True

    def begin(self) -> Any:
        """Take presses from here on; return who took them before."""
        self._waiting = False
        return signal.signal(signal.SIGINT, self)

    @contextmanager
    def users_code(self) -> Iterator[None]:
        """Mark the user's own code, which may run cells itself."""
        with self._marked(inside=True):
            yield

    @contextmanager
    def own_code(self) -> Iterator[None]:
        """Mark IPython's own code within the user's: the press waits."""
        with self._marked(inside=False):
            yield

    @contextmanager
    def _marked(self, *, inside: bool) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        outside, self._inside = self._inside, inside
        try:
            if inside and self._waiting:
                self._waiting = False
                raise KeyboardInterrupt
            yield
        finally:
            self._inside = outside


class HvdShell(ZMQInteractiveShell):
    """IPython's shell that says when the user's code runs."""

    async def run_code(self, *args: Any, **kwargs: Any) -> bool:
        """Run one statement of the user's, where an interrupt may raise."""
        with self.kernel.interrupts.users_code():
            failed: bool = await super().run_code(*args, **kwargs)  # type: ignore[no-untyped-call]
        return failed

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Show an error whole: IPython calls this within a statement, and a press would leave its cell without one."""
        with self.kernel.interrupts.own_code():
            super().showtraceback(*args, **kwargs)
