"""State of this rank's main thread, for reports about cells and scripts: its calls, and the operation it waits for.

Any thread may read it. When C code keeps the GIL and no thread of the process answers, a signal writes the stacks.

Terms.
  own frame    a call of the user's code: a cell, or a file that is not installed
  machinery    packages whose calls explain nothing and are left out: ours, IPython's, and those that run a module
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, NamedTuple

import hvd_kernel
from hvd_kernel.core import group_engines, main_thread
from hvd_kernel.formatting.installed_files import FOLDERS, is_installed
from hvd_kernel.formatting.operation_names import operation_label
from hvd_kernel.frameworks import torch_waits
from hvd_kernel.protocol.messages import STACK_SIGNAL, Frame, Pending

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

CellOf = Callable[[str], str | None]
"""Returns the cell whose code has a file name; None for any other file."""

MAX_FRAMES = 40
MAX_PENDING = 16
"""Pending operations in one report."""

_MAX_LINE = 120
_MACHINERY = ("hvd_kernel", "IPython", "ipykernel", "ipyparallel", "asyncio", "tornado", "runpy")
_OURS = str(Path(hvd_kernel.__file__).parent) + os.sep
_FROZEN = "<frozen "
_CALLERS = {"hvd_kernel.core.handles"}
"""Modules that call the core, whose functions have no Python frames."""


class Call(NamedTuple):
    """One active call."""

    code: CodeType
    line: int
    module: str


def main_frame() -> FrameType | None:
    """Return the innermost frame of the main thread. Any thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way


def register_core_caller(module: str) -> None:
    """Count a module among those that call the core."""
    _CALLERS.add(module)


def inside_core() -> bool:
    """Return whether the main thread is inside a call into the core: its innermost frame is then one of ours."""
    frame = main_frame()
    return frame is not None and frame.f_globals.get("__name__") in _CALLERS


def call_of(frame: FrameType, line: int | None) -> Call:
    """Return a frame as a call, which holds none of its variables.

    ``line`` is None while the frame is between two lines; the call is then shown at its function's first line.
    """
    code = frame.f_code
    return Call(code, code.co_firstlineno if line is None else line, str(frame.f_globals.get("__name__", "")))


def calls(frame: FrameType | None) -> Iterator[tuple[FrameType, Call]]:
    """Return a frame and its callers, innermost first."""
    while frame is not None:
        yield frame, call_of(frame, frame.f_lineno)
        frame = frame.f_back


def frames(outermost_first: list[Call], cell_of: CellOf = lambda _: None) -> tuple[Frame, ...]:
    """Format calls for people; ``cell_of`` returns the cell whose code has a file name, None for any other file."""
    shown = [_frame(call, cell_of) for call in outermost_first if call.module.split(".")[0] not in _MACHINERY]
    return tuple(shown[-MAX_FRAMES:])


def of_main_thread() -> tuple[Frame, ...]:
    """Return all calls of the main thread, outermost first."""
    return frames([call for _, call in calls(main_frame())][::-1])


def _frame(call: Call, cell_of: CellOf) -> Frame:
    file = call.code.co_filename
    cell = cell_of(file)
    is_users_code = cell is not None or not is_installed(file)
    place = _short(file, is_users_code=is_users_code) if cell is None else cell
    function = "" if call.code.co_name == "<module>" else call.code.co_name
    text = _text(file, call.line).strip()
    return Frame(f"{place}:{call.line}", function, text[:_MAX_LINE], is_users_code)


def _text(file: str, line: int) -> str:
    """Return a line of a file; "" if it has fewer, or if a library has put another object into linecache."""
    try:
        return linecache.getline(file, line)
    except TypeError:  # torch does while it is being imported
        return ""


def _short(path: str, *, is_users_code: bool) -> str:
    """Return the path of a library's file below its package's parent, of a user's file below the current directory."""
    if is_users_code:
        with suppress(OSError, ValueError):  # the current directory was deleted, or the file is not in it
            return str(Path(path).relative_to(Path.cwd()))
        return Path(path).name
    return _in_package(path)


def _in_package(path: str) -> str:
    base = max((folder for folder in FOLDERS if path.startswith(folder)), key=len, default="")
    return path[len(base) :]


def runs_user_code(thread: threading.Thread | None, frame: FrameType) -> bool:
    """Return whether a thread, whose innermost frame is ``frame``, runs the user's code, which may call collectives.

    Threads of a library never call us on their own, nor do daemon threads started in Python, which monitor the machine
    or read data. Threads of a C library, which Python lists as dummies, may run functions that the user passed to it.
    """
    if thread is None or isinstance(thread, threading.Timer):
        return True
    if thread.daemon and not isinstance(thread, threading._DummyThread):  # noqa: SLF001 - there is no other way to know
        return False
    return any(not package_of(call.code.co_filename) for _, call in calls(frame))


def package_of(path: str) -> str:
    """Return the package that a file belongs to; "" for the user's code."""
    if path.startswith(_OURS):
        return hvd_kernel.__name__
    if path.startswith(_FROZEN):
        return path.removeprefix(_FROZEN).partition(".")[0].rstrip(">")
    inside = _in_package(path)
    return "" if inside == path else inside.partition(os.sep)[0].removesuffix(".py")


def pending(engine: Engine | None) -> list[Pending]:
    """Return the operations that are not complete on this rank, oldest first; on rank 0 also those of other ranks.

    Those of torch's groups are included, and a group's first rank has those of its members.
    """
    operations = [operation for operation, _ in _pending(engine)]
    return sorted(operations, key=lambda operation: operation.seconds)[::-1]


def waiting_for(engine: Engine | None) -> str:
    """Return the oldest operation that this rank requested, if its main thread waits for it; otherwise "".

    It waits if it is inside the core, or idle in a function of torch that other threads complete, as ``backward``.
    """
    if not inside_core() and not (torch_waits.may_wait(main_frame()) and main_thread.is_idle()):
        return ""
    requested = [operation for operation, rank in _pending(engine) if rank not in operation.missing]
    return max(requested, key=lambda operation: operation.seconds).name if requested else ""


def _pending(engine: Engine | None) -> Iterator[tuple[Pending, int]]:
    """Return the operations of all engines, and this rank's number."""
    if engine is not None:
        for operation in engine.pending():
            yield _operation(operation, ()), engine.rank
    for group, ranks in group_engines.engines():
        for operation in group.pending():
            yield _operation(operation, ranks), ranks[group.rank]


def _operation(operation: dict[str, object], ranks: tuple[int, ...]) -> Pending:
    """Return an operation of an engine; ``ranks``: its ranks, () for all ranks."""
    missing = _missing(operation)
    name = operation_label(str(operation["name"]), str(operation["op"]), ranks)
    return Pending(name, _seconds(operation), tuple(ranks[rank] for rank in missing) if ranks else missing)


def _missing(operation: dict[str, object]) -> tuple[int, ...]:
    ranks = operation.get("missing")
    return tuple(ranks) if isinstance(ranks, list) else ()


def _seconds(operation: dict[str, object]) -> float:
    seconds = operation["seconds"]
    return seconds if isinstance(seconds, float) else 0.0


def dump_stacks_at_signal(descriptor: int) -> None:
    """Write the main thread's stacks to a descriptor at every ``STACK_SIGNAL``, until this process ends.

    Python's calls come first, by ``faulthandler``, then the C functions, by the core. A non-blocking pipe needs no
    reader: output that does not fit is dropped.
    """
    from hvd_kernel._native import write_c_stack_at  # noqa: PLC0415 - only a rank loads the extension

    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=False, chain=False)
    write_c_stack_at(STACK_SIGNAL, descriptor)  # after that: a handler that faulthandler chains loses SA_RESTART
