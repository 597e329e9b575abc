"""Where this rank is: its main thread's calls, told by the control thread, or by a signal when that one gets no turn.

Words.
  own frame    a call of the user's code: a cell, or a file that is not installed
  folded       a call that explains nothing and is left out: of IPython's machinery or of ours; in a traceback also what
               libraries call inside, but for the line that raised
"""

from __future__ import annotations

import faulthandler
import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import hvd_kernel
from hvd_kernel.protocol.messages import STACK_PIPE, STACK_SIGNAL, Frame, Whereabouts, to_wire
from hvd_kernel.worker import communication

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

MAX_FRAMES = 40
MAX_LINE = 120
MAX_PENDING = 16

_FOLDED = ("hvd_kernel", "IPython", "ipykernel", "ipyparallel", "asyncio", "tornado")
_OURS = str(Path(hvd_kernel.__file__).parent) + os.sep
_FROZEN = "<frozen "
_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})

Call = tuple[CodeType, int, str]
"""Code, line, name of the module."""


def answer(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Say where this rank is. Touches nothing that the cell is using."""
    return to_wire(whereabouts(control)), []


def whereabouts(control: Control) -> Whereabouts:
    """Look at the main thread. Any thread."""
    pending = tuple(communication.pending()[:MAX_PENDING])  # rank 0 knows the others' too, also between its cells
    if not control.busy:
        return Whereabouts(control.rank, "idle", pending=pending)
    calls = list(_running()) or list(_suspended(control.coroutine))
    frames = tuple(_frame(call, control.cell_of) for call in calls if call[2].split(".")[0] not in _FOLDED)
    parked = control.prompts.parked
    waits_for = communication.waiting_for() if not parked and inside_core() else ""
    return Whereabouts(control.rank, state(waits_for, parked=parked), waits_for, frames[-MAX_FRAMES:], pending)


def state(waits_for: str, *, parked: bool) -> str:
    """Return the word for what a rank does whose cell runs."""
    return "prompt" if parked else "collective" if waits_for else "compute"


def inside_core() -> bool:
    """Tell whether the main thread is inside a call into the core: its innermost frame is then one of ours."""
    frame = _main()
    return frame is not None and frame.f_globals.get("__name__") == "hvd_kernel.core.ops"


def listen(rank: int) -> None:
    """Have a signal write the main thread's stack to a pipe, for when C code keeps Python's lock and no thread answers.

    Nobody need read it: what does not fit is dropped.
    """
    pipe = Path(os.environ["IPYTHONDIR"]) / STACK_PIPE.format(rank=rank)
    pipe.unlink(missing_ok=True)  # of a rank that this one replaces
    os.mkfifo(pipe, 0o600)
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=False, chain=False)


def _main() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way


def _running() -> Iterator[Call]:
    """Return the calls inside the cell, outermost first; none while the cell is suspended in an await."""
    calls: list[Call] = []
    frame = _main()
    while frame is not None:
        if _runs_cell(frame):
            yield from reversed(calls)
            return
        calls.append(_call(frame, frame.f_lineno))
        frame = frame.f_back


def _suspended(coroutine: Any) -> Iterator[Call]:
    """Return the awaits inside the cell, outermost first."""
    inside = False
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        if inside:
            yield _call(frame, frame.f_lineno)
        inside = inside or _runs_cell(frame)
        coroutine = coroutine.cr_await


def _runs_cell(frame: FrameType) -> bool:
    return frame.f_code.co_name == "run_code" and frame.f_globals.get("__name__") == "IPython.core.interactiveshell"


def _call(frame: FrameType, line: int) -> Call:
    return frame.f_code, line, str(frame.f_globals.get("__name__", ""))


def _frame(call: Call, cell_of: Callable[[str], str | None]) -> Frame:
    code, line, _ = call
    cell = cell_of(code.co_filename)
    own = cell is not None or not code.co_filename.startswith((*_INSTALLED, "<"))
    place = _short(code.co_filename, own=own) if cell is None else cell
    function = "" if code.co_name == "<module>" else code.co_name
    text = linecache.getline(code.co_filename, line).strip()
    return Frame(f"{place}:{line}", function, text[:MAX_LINE], own)


def _short(path: str, *, own: bool) -> str:
    """Name a library's file from its package on, the user's own as it is seen from here."""
    if own:
        here = Path.cwd()
        return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else Path(path).name
    return _in_package(path)


def _in_package(path: str) -> str:
    base = max((folder for folder in _INSTALLED if path.startswith(folder)), key=len, default="")
    return path[len(base) :]


def package_of(path: str) -> str:
    """Return the package that a file is of; "" for the user's own code."""
    if path.startswith(_OURS):
        return hvd_kernel.__name__
    if path.startswith(_FROZEN):
        return path.removeprefix(_FROZEN).partition(".")[0].rstrip(">")
    inside = _in_package(path)
    return "" if inside == path else inside.partition(os.sep)[0].removesuffix(".py")


def folded(parts: Sequence[str], packages: Mapping[str, str], where: str) -> list[str]:
    """Leave out of a traceback what libraries call inside, but for the line that raised, unless it is ours. Pure.

    Parameters
    ----------
    parts
        The traceback: a text for each frame, outermost first, and others between the frames of different exceptions.
    packages
        Text of a frame -> its package.
    where
        What to say of where all of it is.
    """
    if "" not in (packages.get(part) for part in parts):
        return list(parts)  # nothing is the user's: who knows what explains it
    shown: list[str] = []
    runs = [(library, list(run)) for library, run in groupby(parts, lambda part: bool(packages.get(part)))]
    for (library, run), (_, behind) in zip(runs, [*runs[1:], (False, [""])], strict=True):
        raised = library and behind[0] not in packages and packages[run[-1]] != hvd_kernel.__name__
        left_out, kept = (run[:-1], run[-1:]) if raised else (run, []) if library else ([], run)
        shown += [_fold(left_out, packages, where)] * bool(left_out) + kept
    return shown


def _fold(frames: Sequence[str], packages: Mapping[str, str], where: str) -> str:
    names = " and ".join(dict.fromkeys(packages[frame] for frame in frames))
    return f"… {len(frames)} frame{'s' * (len(frames) != 1)} in {names} ({where})\n"
