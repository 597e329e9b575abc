"""pdb on a rank: ``breakpoint()``, ``set_trace``, ``%debug`` and ``%pdb``, with the user's lines from the notebook.

pdb reads by ``input()``, which is ours (prompt.py). What differs from pdb in a terminal: a breakpoint stops at its own
line; a step goes from one statement of the cell to the next and not through IPython; an interrupt at the prompt ends
the cell; ``q`` ends it too, with BdbQuit, so that the other ranks are released.

Terms.
  cell's frame   the frame of one statement at the top of a cell: IPython runs each as a module of its own
  hidden         frames of IPython and of ours, which are neither stopped in nor shown
"""

from __future__ import annotations

import bdb
import os
import pdb  # noqa: T100 - to be one
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from IPython.core import debugger as ipdb

from hvd_kernel.errors import UsageError

_HIDDEN = ("IPython", "ipykernel", "ipyparallel", "traitlets", "asyncio", "tornado", "zmq", "hvd_kernel.worker")
_QUIT = "left the debugger with q"
_NOTHING = "there is no failed cell to look at: a rank keeps its last exception until its next cell begins"
_LAST = ("last_type", "last_value", "last_traceback", "last_exc")


class RankPdb(pdb.Pdb):
    """pdb in a cell."""

    def __init__(self, shell: Any) -> None:
        super().__init__(skip=_HIDDEN, nosigint=True)  # its SIGINT handler would replace the rank's
        self._shell = shell

    def stop_in(self, frame: FrameType) -> None:
        """Stop at the line where the frame is now."""
        sys.settrace(None)
        self.reset()
        self._follow(frame)
        self.interaction(frame, None)
        if self.quitting:
            raise bdb.BdbQuit(_QUIT)
        if self.stoplineno != -1 or self.breaks:  # anything but "continue"
            sys.settrace(self.trace_dispatch)

    def go_on(self) -> None:
        """Stop in the statement that begins, if the last one was stepped (bdb misses the return of one that awaits)."""
        if self.stopframe is not None and _is_cells(self.stopframe) and self.stoplineno != -1:
            self.set_step()
        sys.settrace(self.trace_dispatch)

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Say, when the user has left, that it was so."""
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            raise bdb.BdbQuit(_QUIT) from None

    def is_skipped_module(self, module_name: Any) -> bool:
        """Tell whether frames of a module are hidden (the base class matches patterns, at every call)."""
        return str(module_name).startswith(_HIDDEN)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Stop at a call, but not before the first line of a statement of the cell."""
        if not _is_cells(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Stop at a return, but not behind a statement of the cell: the next one follows."""
        if not _is_cells(frame):
            super().user_return(frame, return_value)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the frames from the cell on."""
        stack, at = super().get_stack(f, t)
        first = next((i for i, (frame, _) in enumerate(stack) if _is_cells(frame)), 0)
        return stack[first:], max(0, at - first)

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """Name the cell instead of the file that IPython takes its text from."""
        text = super().format_stack_entry(frame_lineno, lprefix)
        file = self.canonic(frame_lineno[0].f_code.co_filename)
        known = self._shell.compile.format_code_name(frame_lineno[0].f_code.co_filename)
        return text if known is None else text.replace(file, " ".join(known), 1)

    def _cmdloop(self) -> None:
        self.cmdloop()  # the base class swallows KeyboardInterrupt and prompts again

    def _follow(self, frame: FrameType) -> None:
        """Trace the frames of the user's code that are there already, up to the cell's."""
        self.botframe = frame
        while True:
            frame.f_trace = self.trace_dispatch
            self.botframe = frame
            if _is_cells(frame) or frame.f_back is None or self.is_skipped_module(_module(frame.f_back)):
                return
            frame = frame.f_back


class Debugging:
    """The rank's debugger: made at the first breakpoint of a cell, gone with the cell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._pdb: RankPdb | None = None
        self._paused = False  # between two statements of the cell that are traced

    def install(self) -> None:
        """Become what ``breakpoint()`` and the usual functions call."""
        sys.breakpointhook = self._on_breakpoint
        pdb.set_trace = ipdb.set_trace = self.set_trace
        pdb.post_mortem = self.post_mortem

    @contextmanager
    def during_cell(self, code: str) -> Iterator[None]:
        """Let go, before, of the last cell's exception, unless this cell looks at it; and after, of the debugger.

        An exception keeps the tensors alive that its frames hold.
        """
        if not code.lstrip().startswith("%debug"):
            self.forget()
        try:
            yield
        finally:
            self.let_go()
            self._pdb, self._paused = None, False

    def let_go(self) -> None:
        """Stop tracing: what runs from here on is not the user's code."""
        if self._traces():
            sys.settrace(None)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Trace nothing until the block ends: what runs in it is not the user's code."""
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(trace)

    def check_left(self) -> None:
        """Raise where the user has left and nobody heard of it: a finalizer's exceptions go nowhere.

        Raises
        ------
        bdb.BdbQuit
            The statement that has ended was to end the cell.
        """
        if self._pdb is not None and self._pdb.quitting:
            raise bdb.BdbQuit(_QUIT)

    def __enter__(self) -> None:
        """Go on stepping: a statement of the cell begins."""
        if self._paused and self._pdb is not None:
            self._pdb.go_on()

    def __exit__(self, *_: object) -> None:
        self._paused = self._traces()
        self.let_go()

    def set_trace(
        self, frame: FrameType | None = None, header: str | None = None, *, cond: bool = True, **_: object
    ) -> None:
        """Open the debugger in the caller's frame."""
        if cond:
            self._open(frame or sys._getframe(1), header)  # noqa: SLF001 - the documented way

    def post_mortem(self, t: Any = None) -> None:
        """Open the debugger where an exception was raised; by default where the last cell failed.

        Raises
        ------
        UsageError
            There is none.
        """
        found = t or sys.exc_info()[1] or getattr(sys, "last_value", None)
        trace = found.__traceback__ if isinstance(found, BaseException) else found
        if trace is None:
            raise UsageError(_NOTHING)
        looker = RankPdb(self._shell)
        looker.reset()
        looker.message("".join(traceback.format_exception_only(found)).rstrip() if found is not trace else "")
        looker.interaction(None, trace)

    def _traces(self) -> bool:
        return self._pdb is not None and getattr(sys.gettrace(), "__self__", None) is self._pdb

    def forget(self) -> None:
        """Let go of the last exception, and so of what its frames hold."""
        for name in _LAST:
            vars(sys).pop(name, None)
        self._shell.InteractiveTB.tb = None
        self._shell.last_execution_result = None

    def _on_breakpoint(self, *args: Any, **kwargs: Any) -> Any:
        if os.environ.get("PYTHONBREAKPOINT"):  # "0": no breakpoints; or another debugger
            return sys.__breakpointhook__(*args, **kwargs)  # noqa: T100 - the user's choice
        return self._open(sys._getframe(1), kwargs.get("header"))  # noqa: SLF001 - the documented way

    def _open(self, frame: FrameType, header: str | None) -> None:
        if self._pdb is None:
            self._pdb = RankPdb(self._shell)
        if header is not None:
            self._pdb.message(header)
        self._pdb.stop_in(frame)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_cells(frame: FrameType) -> bool:
    return frame.f_code.co_name == "<module>" and _module(frame) == "__main__"
