"""The cells of this rank as a program that deadlock detection watches: which one runs, and whether it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import call_stack, deadlocks

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control


class CellProgram(deadlocks.WatchedProgram):
    """The cells of one rank; made on the thread of its event loop, read by any thread."""

    def __init__(self, control: Control) -> None:
        self._control = control

    @property
    def run(self) -> int | None:
        """The run under way, or the one that has ended; None: a request of the notebook, or no cell yet."""
        control = self._control
        return control.run_number if control.busy or self.is_over else None

    @property
    def is_over(self) -> bool:
        """True between cells, unless the loop still has work of the user's, or a client may send some."""
        control = self._control
        if control.busy or control.has_clients or control.latest.ended is None:
            return False
        return not any(map(_is_users, _left_behind(control.loop)))

    def cell_of(self, file: str) -> str | None:
        """Return the cell whose code has this file name."""
        return self._control.cell_of(file)


def _left_behind(loop: asyncio.AbstractEventLoop | None) -> Iterator[Any]:
    """Yield the coroutines and callbacks that an event loop will still run."""
    if loop is None:
        return
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        while coroutine is not None:
            yield coroutine
            coroutine = getattr(coroutine, "cr_await", None)
    for handle in list(getattr(loop, "_scheduled", ())):  # of call_later and call_at; asyncio lists them nowhere else
        if not handle.cancelled():
            yield handle._callback  # noqa: SLF001 - as above


def _is_users(work: Any) -> bool:
    """Return whether a coroutine, or a callback with its arguments, is code of the user's."""
    if isinstance(work, partial):
        return any(map(_is_users, (work.func, *work.args)))
    code = getattr(work, "cr_code", None) or getattr(work, "__code__", None)
    return isinstance(code, CodeType) and not call_stack.package_of(code.co_filename)
