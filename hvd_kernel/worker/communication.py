"""The rank's communication as the worker uses it: start and prove it, abort it, reset it, look at it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hvd_kernel.core import call_stack, ops, process_sets, session
from hvd_kernel.errors import BECAUSE_OF_ANOTHER, ClusterError, Mismatch, OutOfMemory
from hvd_kernel.protocol.messages import Pending

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

_OF_ALL = (Mismatch, OutOfMemory)  # what all ranks of an operation raise, though not at the same moment


def start() -> None:
    """Initialise and prove it: an allreduce over all ranks has given the right sum when this returns.

    Raises
    ------
    ClusterError
        The sum is wrong.
    """
    session.init()
    _prove()


def reset_communicator(*, fresh: bool = False, before: Sequence[int] | None = None) -> None:
    """Replace communication that an abort has ended; process sets come back. All ranks call this together.

    fresh: this rank has met nobody yet. before: of each rank its number before, -1: it was not there; None: the same.
    """
    process_sets.reset_to_all_ranks(fresh=fresh, before=before)
    _prove()


def _prove() -> None:
    size = session.size()
    total = ops.allreduce(np.array([session.rank() + 1]), name="hvd.ready", op=ops.Sum)
    if total[0] != size * (size + 1) // 2:
        raise ClusterError(f"the first allreduce gave {total[0]} instead of {size * (size + 1) // 2}")


def abort(reason: str, after_s: float = 0.0) -> Callable[[], None]:
    """Release the other ranks from whatever they wait in for this one, at once or after a moment.

    By then this engine may have been replaced; to abort one that is shut down does nothing.

    Returns
    -------
    Callable
        What does it sooner.
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
    """Say that this rank waits for the user at a prompt, or no longer: others that wait for it are not stalled."""
    if session.is_initialized():
        session.engine().park(parked)


def aborted() -> bool:
    """Tell whether this rank's communication has ended and needs ``reset_communicator``."""
    return session.is_initialized() and session.engine().aborted() is not None


def pending() -> list[Pending]:
    """Return the operations that are not done here, oldest first."""
    return call_stack.pending(_engine())


def operations() -> int:
    """Return how many operations this rank has begun."""
    return session.counters().get("ops", 0) + len(pending())


def waiting_for() -> str:
    """Return the name of the operation in which the main thread waits, "" when it does not. Any thread."""
    return call_stack.waiting_for(_engine())


def _engine() -> Engine | None:
    return session.engine() if session.is_initialized() else None


def is_secondary(error: BaseException) -> bool:
    """Tell whether this rank raised only because another one failed, or did not come, first."""
    return isinstance(error, BECAUSE_OF_ANOTHER)


def is_of_all(error: BaseException) -> bool:
    """Tell whether the other ranks of the operation raise the same by themselves."""
    return isinstance(error, _OF_ALL)
