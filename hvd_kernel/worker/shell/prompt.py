"""Prompts of a rank to the user, for input(), getpass() and pdb: the notebook replies with a line.

The requesting thread waits in a queue, where an interrupt reaches it; the rank's control thread delivers the answer.

pdb, by ``breakpoint()``, ``set_trace``, ``%debug`` or ``%pdb``, reads with our ``input()``. Differences from pdb in a
terminal: a breakpoint stops at its own line; a step continues at the next statement of the cell and not inside IPython;
an interrupt at the prompt ends the cell, and so does ``q``, with BdbQuit, which releases the other ranks.

Terms.
  prompt         one request for a line, numbered per rank; open until it is answered or interrupted, or its cell ends
  typed          the answer: the user's line, the end of input, or a refusal with its reason
  parked         the main thread waits at a prompt, and the other ranks wait for it
  cell's frame   the frame of one top-level statement of a cell: IPython runs each as a separate module
  hidden         frames of IPython and of this package, in which pdb neither stops nor shows
"""

from __future__ import annotations

import bdb
import itertools
import os
import pdb  # noqa: T100 - this is a debugger
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from IPython.core import debugger as ipdb
from IPython.core.error import StdinNotImplementedError

from hvd_kernel.errors import UsageError
from hvd_kernel.protocol.messages import PROMPT_TYPE, Prompt, to_content

Publish = Callable[[str, dict[str, Any], dict[str, Any]], None]

ANY = 0
"""As a prompt's number: the oldest open prompt that is not for a password."""

_NO_CELL = "input: no cell of this rank is running, so no user can answer: call it while the cell runs"


class RankPrompts:
    """Open prompts of this rank. Threads of the user's code call ``request``, the control thread ``deliver``."""

    def __init__(self, rank: int, publish: Publish, park: Callable[[bool], None] = lambda _: None) -> None:
        self.rank = rank
        self._publish = publish
        self._park = park  # notifies the other ranks that this one waits for the user
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Prompt, queue.SimpleQueue[Mapping[str, Any]]]] = {}
        self._in_cell = False
        self._parked = 0  # prompts of the main thread; a signal handler may open one inside another

    @property
    def parked(self) -> bool:
        """Whether the main thread waits for the user. Any thread."""
        return self._parked > 0

    @contextmanager
    def during_cell(self) -> Iterator[None]:
        """Allow prompts until the block ends; threads that still wait then get a refusal."""
        self._in_cell = True
        try:
            yield
        finally:
            self._in_cell = False
            for _, answer in list(self._open.values()):
                answer.put({"refused": _NO_CELL})

    def request(self, text: str, *, password: bool, parent: dict[str, Any]) -> str:
        """Request a line from the user and return it.

        Raises
        ------
        EOFError
            The user ended the input.
        StdinNotImplementedError
            No user can answer.
        """
        prompt = Prompt(self.rank, next(self._numbers), text, password)
        answer: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._open[prompt.number] = prompt, answer
        try:
            if not self._in_cell:  # checked after opening: a cell that ends refuses all open prompts
                raise StdinNotImplementedError(_NO_CELL)
            with self._parking():
                self._publish(PROMPT_TYPE, to_content(prompt), parent)
                return _line(answer.get())
        finally:
            del self._open[prompt.number]

    @property
    def unanswered(self) -> list[dict[str, Any]]:
        """Open prompts, for a kernel that attaches while this rank waits. Any thread."""
        return [to_content(prompt) for prompt, _ in list(self._open.values())]

    @contextmanager
    def _parking(self) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        self._parked += is_main
        try:
            if is_main and self._parked == 1:
                self._park(True)
            yield
        finally:
            self._parked -= is_main
            if is_main and not self._parked:
                self._park(False)

    def deliver(self, typed: Mapping[str, Any]) -> bool:
        """Deliver an answer to its prompt; return False if that prompt is no longer open."""
        number = typed["number"]
        for prompt, answer in list(self._open.values()):
            if number == prompt.number or (number == ANY and not prompt.password):
                answer.put(typed)
                return True
        return False


def _line(typed: Mapping[str, Any]) -> str:
    if "refused" in typed:
        raise StdinNotImplementedError(typed["refused"])
    if typed.get("eof"):
        raise EOFError
    return str(typed["text"])


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
        """Stop at the current line of a frame."""
        sys.settrace(None)
        self.reset()
        self._follow(frame)
        self.interaction(frame, None)
        if self.quitting:
            raise bdb.BdbQuit(_QUIT)
        if self.stoplineno != -1 or self.breaks:  # anything but "continue"
            sys.settrace(self.trace_dispatch)

    def resume(self) -> None:
        """Stop in the next statement if the last one was stepped (bdb misses the return of one that awaits)."""
        if self.stopframe is not None and _is_cells(self.stopframe) and self.stoplineno != -1:
            self.set_step()
        sys.settrace(self.trace_dispatch)

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """Replace the message of a BdbQuit: the user has left the debugger."""
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            raise bdb.BdbQuit(_QUIT) from None

    def is_skipped_module(self, module_name: Any) -> bool:
        """Return whether frames of a module are hidden (the base class matches patterns at every call)."""
        return str(module_name).startswith(_HIDDEN)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Stop at a call, but not before the first line of a statement of the cell."""
        if not _is_cells(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Stop at a return, but not after a statement of the cell, since the next one follows."""
        if not _is_cells(frame):
            super().user_return(frame, return_value)

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the frames from the cell's frame on."""
        stack, at = super().get_stack(f, t)
        first = next((i for i, (frame, _) in enumerate(stack) if _is_cells(frame)), 0)
        return stack[first:], max(0, at - first)

    def format_stack_entry(self, frame_lineno: tuple[FrameType, int], lprefix: str = ": ") -> str:
        """Show the cell instead of the file from which IPython takes its text."""
        text = super().format_stack_entry(frame_lineno, lprefix)
        file = self.canonic(frame_lineno[0].f_code.co_filename)
        label = self._shell.compile.format_code_name(frame_lineno[0].f_code.co_filename)
        return text if label is None else text.replace(file, " ".join(label), 1)

    def _cmdloop(self) -> None:
        self.cmdloop()  # the base class swallows KeyboardInterrupt and prompts again

    def _follow(self, frame: FrameType) -> None:
        """Trace the existing frames of the user's code, up to the cell's."""
        self.botframe = frame
        while True:
            frame.f_trace = self.trace_dispatch
            self.botframe = frame
            if _is_cells(frame) or frame.f_back is None or self.is_skipped_module(_module(frame.f_back)):
                return
            frame = frame.f_back


class Debugging:
    """Debugger of the rank: created at the first breakpoint of a cell, dropped at the cell's end."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._pdb: RankPdb | None = None
        self._paused = False  # between two traced statements of the cell

    def install(self) -> None:
        """Replace ``breakpoint()`` and pdb's functions."""
        sys.breakpointhook = self._on_breakpoint
        pdb.set_trace = ipdb.set_trace = self.set_trace
        pdb.post_mortem = self.post_mortem

    @contextmanager
    def during_cell(self, code: str) -> Iterator[None]:
        """Drop the last cell's exception first, unless this cell inspects it, and the debugger afterwards.

        An exception keeps the tensors in its frames alive.
        """
        if not code.lstrip().startswith("%debug"):
            self.forget()
        try:
            yield
        finally:
            self.stop_tracing()
            self._pdb, self._paused = None, False

    def stop_tracing(self) -> None:
        """Stop tracing: the following code is not the user's."""
        if self._traces():
            sys.settrace(None)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend tracing until the block ends: its code is not the user's."""
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(trace)

    def check_left(self) -> None:
        """Raise if the user has left the debugger in code whose exceptions are ignored, such as a finalizer.

        Raises
        ------
        bdb.BdbQuit
            The user has left the debugger during the last statement.
        """
        if self._pdb is not None and self._pdb.quitting:
            raise bdb.BdbQuit(_QUIT)

    def __enter__(self) -> None:
        """Continue stepping at the start of a statement of the cell."""
        if self._paused and self._pdb is not None:
            self._pdb.resume()

    def __exit__(self, *_: object) -> None:
        self._paused = self._traces()
        self.stop_tracing()

    def set_trace(
        self, frame: FrameType | None = None, header: str | None = None, *, cond: bool = True, **_: object
    ) -> None:
        """Open the debugger in the caller's frame."""
        if cond:
            self._open(frame or sys._getframe(1), header)  # noqa: SLF001 - the documented way

    def post_mortem(self, t: Any = None) -> None:
        """Open the debugger where an exception was raised, by default that of the last cell.

        Raises
        ------
        UsageError
            There is no exception.
        """
        error = t or sys.exc_info()[1] or getattr(sys, "last_value", None)
        trace = error.__traceback__ if isinstance(error, BaseException) else error
        if trace is None:
            raise UsageError(_NOTHING)
        debugger = RankPdb(self._shell)
        debugger.reset()
        debugger.message("".join(traceback.format_exception_only(error)).rstrip() if error is not trace else "")
        debugger.interaction(None, trace)

    def _traces(self) -> bool:
        return self._pdb is not None and getattr(sys.gettrace(), "__self__", None) is self._pdb

    def forget(self) -> None:
        """Drop the last exception, and with it the objects in its frames."""
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
