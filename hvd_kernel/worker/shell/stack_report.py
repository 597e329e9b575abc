"""Stack report of this rank: calls of its main thread inside the cell, and the operation it waits for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import call_stack
from hvd_kernel.core.call_stack import MAX_PENDING, Call
from hvd_kernel.protocol.messages import STACK_PIPE, Whereabouts, to_content
from hvd_kernel.worker import communication

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control


def answer(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the state of this rank. Uses nothing that the cell uses."""
    return to_content(whereabouts(control)), []


def whereabouts(control: Control) -> Whereabouts:
    """Return the state of the main thread. Any thread."""
    pending = tuple(communication.pending()[:MAX_PENDING])  # on rank 0 also those of others, even between cells
    if not control.busy:
        return Whereabouts(control.rank, "idle", pending=pending)
    if control.shows_error:  # the calls are those of IPython's formatter
        return Whereabouts(control.rank, "traceback", pending=pending)
    calls = list(_running()) or list(_suspended(control.coroutine))
    parked = control.prompts.parked
    wait = communication.MainThreadWait() if parked else communication.main_thread_wait(control.cell_of)
    frames = call_stack.frames(calls, control.cell_of)
    return Whereabouts(control.rank, state(wait.name, parked=parked), wait.name, frames, pending, ranks=wait.ranks)


def state(waits_for: str, *, parked: bool) -> str:
    """Return the state of a rank whose cell runs."""
    return "prompt" if parked else "collective" if waits_for else "compute"


def open_pipe(rank: int) -> None:
    """Write the main thread's stacks to a pipe at a signal, for times when C code keeps the GIL."""
    pipe = Path(os.environ["IPYTHONDIR"]) / STACK_PIPE.format(rank=rank)
    pipe.unlink(missing_ok=True)  # of the rank that this one replaces
    os.mkfifo(pipe, 0o600)
    call_stack.dump_stacks_at_signal(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


def _running() -> Iterator[Call]:
    """Return the calls inside the cell, outermost first; none while the cell is suspended in an await."""
    inside: list[Call] = []
    for frame, call in call_stack.calls(call_stack.main_frame()):
        if _runs_cell(frame):
            yield from reversed(inside)
            return
        inside.append(call)


def _suspended(coroutine: Any) -> Iterator[Call]:
    """Return the awaits inside the cell, outermost first."""
    inside = False
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        if inside:
            yield call_stack.call_of(frame, frame.f_lineno)
        inside = inside or _runs_cell(frame)
        coroutine = coroutine.cr_await


def _runs_cell(frame: FrameType) -> bool:
    return frame.f_code.co_name == "run_code" and frame.f_globals.get("__name__") == "IPython.core.interactiveshell"
