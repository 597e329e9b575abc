"""The error that ends a cell, told apart from errors that IPython displays while the cell continues.

IPython shows both by the same methods. A failing ``_repr_html_``, a script of ``%run``, ``showtraceback()`` in an
``except`` block and a callback are displayed, and the cell continues; only the cell's own result has the error that
ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any


class CellError:
    """State of one rank's shell: which result is the cell's, and whether its code or a callback runs."""

    def __init__(self) -> None:
        self._active = False  # a cell is being transformed, compiled or run
        self._callbacks = 0  # nested callbacks of IPython's events
        self._result: Any = None  # of the cell, once its first statement begins: nested cells have their own
        self._caller: CodeType | None = None  # the code that calls a client's function, which is no cell

    @contextmanager
    def cell(self) -> Iterator[None]:
        """Mark the block as one cell."""
        self._active, self._result, self._callbacks = True, None, 0
        try:
            yield
        finally:
            self._active, self._result = False, None

    @contextmanager
    def call(self, caller: CodeType) -> Iterator[None]:
        """Mark the block as a call of a function, whose error reaches ``caller``."""
        self._caller = caller
        try:
            yield
        finally:
            self._caller = None

    @contextmanager
    def callback(self) -> Iterator[None]:
        """Mark the block as callbacks of an event of IPython's."""
        self._callbacks += 1
        try:
            yield
        finally:
            self._callbacks -= 1

    def begin_statements(self, result: Any) -> None:
        """Record the result of the cell: that of the outermost code that runs."""
        if self._active and not self._callbacks and self._result is None:
            self._result = result

    def ends_cell(self, error: BaseException) -> bool:
        """Return whether an error that IPython is about to show ends the cell, or the call."""
        if self._caller is not None:
            trace = error.__traceback__
            return trace is not None and trace.tb_frame.f_code is self._caller
        if not self._active or self._callbacks:
            return False
        if self._result is None:
            return True  # the code cannot be transformed or compiled
        return error is self._result.error_in_exec or error is self._result.error_before_exec
