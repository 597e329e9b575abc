"""Communication of the rank as used by the worker: start and verify, abort, reset, and query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hvd_kernel.core import call_stack, main_thread, ops, process_sets, session
from hvd_kernel.errors import BECAUSE_OF_ANOTHER, ClusterError, Mismatch, OutOfMemory, without_future
from hvd_kernel.formatting.operation_names import OTHER_BACKEND
from hvd_kernel.frameworks import torch_connections, torch_waits
from hvd_kernel.protocol.messages import Pending

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

_OF_ALL = (Mismatch, OutOfMemory)  # errors that all ranks of an operation raise, though not at the same time


def start() -> None:
    """Initialise, and verify with an allreduce over all ranks.

    Raises
    ------
    ClusterError
        The sum is wrong.
    """
    session.init()
    _verify()


def reset_communicator(*, fresh: bool = False, before: Sequence[int] | None = None) -> None:
    """Replace communication that was aborted, and restore process sets. All ranks call this together.

    fresh: this rank is new and has had no communicator. before: number of each rank before the reset, -1 if it is new;
    None: no number has changed.
    """
    process_sets.reset_to_all_ranks(fresh=fresh, before=before)
    _verify()


def _verify() -> None:
    size = session.size()
    part = [session.rank() + 1, int(torch_connections.are_closed())]
    total = ops.allreduce(np.array(part), name="hvd.ready", op=ops.Sum)
    if total[0] != size * (size + 1) // 2:
        raise ClusterError(f"the first allreduce gave {total[0]} instead of {size * (size + 1) // 2}")
    if total[1]:
        torch_connections.discard_groups()


def abort(reason: str, after_s: float = 0.0) -> Callable[[], None]:
    """Release other ranks from operations in which they wait for this one, now or after a delay.

    By then this engine may have been replaced; aborting an engine that was shut down has no effect.

    Returns
    -------
    Callable
        Aborts before the delay is over.
    """
    if not session.is_initialized():
        return lambda: None
    release = partial(session.engine().abort, reason)
    if not after_s:
        release()
        return release
    later = threading.Timer(after_s, release)
    later.daemon = True
    later.start()
    return release


def park(parked: bool) -> None:
    """Announce whether this rank waits for the user at a prompt: ranks that wait for it then are not stalled."""
    if session.is_initialized():
        session.engine().park(parked)


def aborted() -> bool:
    """Return whether this rank's communication was aborted and needs ``reset_communicator``."""
    return session.is_initialized() and session.engine().aborted() is not None


def pending() -> list[Pending]:
    """Return the operations that are not complete on this rank, oldest first."""
    return call_stack.pending(_engine())


def operations() -> int:
    """Return the number of operations that this rank has started."""
    return session.counters().get("ops", 0) + len(pending())


class MainThreadWait(NamedTuple):
    """The operation that the main thread waits for; empty if it does not wait."""

    name: str = ""
    ranks: tuple[int, ...] = ()
    """On another backend than ours: the ranks that take part, as far as it is known."""
    place: str = ""
    """On another backend: the line of the user's code."""

    @property
    def text(self) -> str:
        """The name, with the place if it is known."""
        return f"{self.name}, {self.place}" if self.place else self.name


def main_thread_wait(cell_of: call_stack.CellOf) -> MainThreadWait:
    """Return what the main thread waits for, on our core or on another backend of torch. Any thread."""
    if name := call_stack.waiting_for(_engine()):
        return MainThreadWait(name)
    frame = call_stack.main_frame() if main_thread.is_idle() else None
    wait = torch_waits.wait_on_other_backend(frame)
    if wait is None:
        return MainThreadWait()
    calls = [call for _, call in call_stack.calls(frame)][::-1]
    places = [shown.place for shown in call_stack.frames(calls, cell_of) if shown.is_user_code]
    return MainThreadWait(OTHER_BACKEND + wait.operation, wait.ranks, places[-1] if places else "")


def _engine() -> Engine | None:
    return session.engine() if session.is_initialized() else None


def is_secondary(error: BaseException) -> bool:
    """Return whether an error was caused by another rank that failed first, or did not arrive."""
    return isinstance(without_future(error), BECAUSE_OF_ANOTHER) or torch_connections.is_lost(error)


def is_of_all(error: BaseException) -> bool:
    """Return whether the other ranks of the operation raise the same error on their own."""
    return isinstance(without_future(error), _OF_ALL)
