"""Interrupt handler of the notebook's kernel: it raises KeyboardInterrupt in the user's code only.

ipykernel raises KeyboardInterrupt anywhere in the main thread while it handles a request. Before a cell runs, or while
the reply is written, no code catches it: the cell gets no reply, and is shown as running forever. An interrupt that
arrives in IPython's or ipykernel's code is kept until the user's next statement in the same cell, and discarded at the
end of the cell. magics/interrupts.py describes the effect of an interrupt on the ranks of a cell.
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
    """Signal handler that knows whether the main thread runs user code. Subshells run in threads without signals."""

    def __init__(self) -> None:
        self._in_user_code = False
        self._pending = False

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGINT."""
        if self._in_user_code:
            raise KeyboardInterrupt
        self._pending = True

    def begin(self) -> Any:
        """Install this handler; return the previous one."""
        self._pending = False
        return signal.signal(signal.SIGINT, self)

    @contextmanager
    def users_code(self) -> Iterator[None]:
        """Mark the user's code, which may run cells itself."""
        with self._marked(user_code=True):
            yield

    @contextmanager
    def own_code(self) -> Iterator[None]:
        """Mark IPython's code inside the user's code: an interrupt is kept."""
        with self._marked(user_code=False):
            yield

    @contextmanager
    def _marked(self, *, user_code: bool) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, self._in_user_code = self._in_user_code, user_code
        try:
            if user_code and self._pending:
                self._pending = False
                raise KeyboardInterrupt
            yield
        finally:
            self._in_user_code = before


class HvdShell(ZMQInteractiveShell):
    """IPython's shell, which marks when the user's code runs."""

    async def run_code(self, *args: Any, **kwargs: Any) -> bool:
        """Run one statement of the user; an interrupt raises."""
        with self.kernel.interrupts.users_code():
            failed: bool = await super().run_code(*args, **kwargs)  # type: ignore[no-untyped-call]
        return failed

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """Show an error without interruption: IPython calls this inside a statement, whose error would be lost."""
        with self.kernel.interrupts.own_code():
            super().showtraceback(*args, **kwargs)
