"""Call stack of this rank's main thread, as frames of a message: for cells, and for scripts.

Terms.
  own frame    a call of the user's code: a cell, or a file that is not installed
  machinery    packages whose calls explain nothing and are left out: ours, IPython's, what runs a module
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import hvd_kernel
from hvd_kernel.formatting.installed_files import FOLDERS, is_installed
from hvd_kernel.protocol.messages import Frame

MAX_FRAMES = 40
_MAX_LINE = 120
_MACHINERY = ("hvd_kernel", "IPython", "ipykernel", "ipyparallel", "asyncio", "tornado", "runpy")
_OURS = str(Path(hvd_kernel.__file__).parent) + os.sep
_FROZEN = "<frozen "
_CALLERS = {"hvd_kernel.core.handles"}
"""Modules that call the core: what it does has no frame of Python's."""


class Call(NamedTuple):
    """One call that is going on."""

    code: CodeType
    line: int
    module: str


def main_frame() -> FrameType | None:
    """Return the innermost frame of the main thread. Any thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way


def calls_core(module: str) -> None:
    """Have a module count among those that call the core."""
    _CALLERS.add(module)


def inside_core() -> bool:
    """Tell whether the main thread is inside a call into the core: its innermost frame is then one of ours."""
    frame = main_frame()
    return frame is not None and frame.f_globals.get("__name__") in _CALLERS


def call_of(frame: FrameType, line: int | None) -> Call:
    """Return a frame as a call, which holds none of its variables.

    ``line``: Python has None where the frame is between two lines; then it is the function's first one.
    """
    code = frame.f_code
    return Call(code, code.co_firstlineno if line is None else line, str(frame.f_globals.get("__name__", "")))


def calls(frame: FrameType | None) -> Iterator[tuple[FrameType, Call]]:
    """Return a frame and those that called it, innermost first."""
    while frame is not None:
        yield frame, call_of(frame, frame.f_lineno)
        frame = frame.f_back


def frames(outermost_first: list[Call], cell_of: Callable[[str], str | None] = lambda _: None) -> tuple[Frame, ...]:
    """Return calls as people read them; ``cell_of``: the cell whose code goes by a file name, None where it is none."""
    shown = [_frame(call, cell_of) for call in outermost_first if call.module.split(".")[0] not in _MACHINERY]
    return tuple(shown[-MAX_FRAMES:])


def of_main_thread() -> tuple[Frame, ...]:
    """Return all calls of the main thread, outermost first."""
    return frames([call for _, call in calls(main_frame())][::-1])


def _frame(call: Call, cell_of: Callable[[str], str | None]) -> Frame:
    file = call.code.co_filename
    cell = cell_of(file)
    own = cell is not None or not is_installed(file)
    place = _short(file, own=own) if cell is None else cell
    function = "" if call.code.co_name == "<module>" else call.code.co_name
    text = _text(file, call.line).strip()
    return Frame(f"{place}:{call.line}", function, text[:_MAX_LINE], own)


def _text(file: str, line: int) -> str:
    """Return a line of a file; "" also where a library that keeps source of its own has put something else there."""
    try:
        return linecache.getline(file, line)
    except TypeError:  # torch does while it is being imported
        return ""


def _short(path: str, *, own: bool) -> str:
    """Name a library's file from its package on, the user's own as it is seen from here."""
    if own:
        with suppress(OSError, ValueError):  # the current directory was deleted, or the file is not in it
            return str(Path(path).relative_to(Path.cwd()))
        return Path(path).name
    return _in_package(path)


def _in_package(path: str) -> str:
    base = max((folder for folder in FOLDERS if path.startswith(folder)), key=len, default="")
    return path[len(base) :]


def is_users(thread: threading.Thread | None, frame: FrameType) -> bool:
    """Tell whether a thread, here in ``frame``, runs code of the user's: no library calls us unasked.

    Nor do daemon threads that were started in Python: they watch the machine, or read data. Those of a library in C,
    which are dummies to Python, may carry out what the user has given it.
    """
    if thread is None or isinstance(thread, threading.Timer):
        return True
    if thread.daemon and not isinstance(thread, threading._DummyThread):  # noqa: SLF001 - there is no other way to know
        return False
    return any(not package_of(call.code.co_filename) for _, call in calls(frame))


def package_of(path: str) -> str:
    """Return the package that a file is of; "" for the user's own code."""
    if path.startswith(_OURS):
        return hvd_kernel.__name__
    if path.startswith(_FROZEN):
        return path.removeprefix(_FROZEN).partition(".")[0].rstrip(">")
    inside = _in_package(path)
    return "" if inside == path else inside.partition(os.sep)[0].removesuffix(".py")
