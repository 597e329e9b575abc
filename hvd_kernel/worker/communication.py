"""The rank's communication as the worker uses it: start and prove it, abort it, renew it, look at it."""

from __future__ import annotations

import numpy as np

from hvd_kernel import _session, ops
from hvd_kernel.errors import ClusterError, RankDied, RankFailed, RankStalled

_OF_OTHERS = (RankFailed, RankDied, RankStalled)  # each names another rank as the one to look at


def start() -> None:
    """Initialise and prove it: an allreduce over all ranks has given the right sum when this returns.

    Raises
    ------
    ClusterError
        The sum is wrong.
    """
    _session.init()
    size = _session.size()
    total = ops.allreduce(np.array([_session.rank() + 1]), name="hvd.ready", op=ops.Sum)
    if total[0] != size * (size + 1) // 2:
        raise ClusterError(f"the first allreduce gave {total[0]} instead of {size * (size + 1) // 2}")


def renew() -> None:
    """Replace communication that an abort has ended. All ranks call this together."""
    _session.shutdown()
    start()


def abort(reason: str) -> None:
    """Release the other ranks from whatever they wait in for this one."""
    if _session.is_initialized():
        _session.engine().abort(reason)


def aborted() -> bool:
    """Tell whether this rank's communication has ended and needs ``renew``."""
    return _session.is_initialized() and _session.engine().aborted() is not None


def waiting_for() -> str:
    """Return the name of the oldest operation that is not done here, "" when there is none."""
    pending = _session.engine().pending() if _session.is_initialized() else []
    oldest = max(pending, key=_seconds, default={"name": ""})
    return str(oldest["name"])


def is_secondary(error: BaseException) -> bool:
    """Tell whether this rank raised only because another one failed, or did not come, first."""
    return isinstance(error, _OF_OTHERS)


def _seconds(operation: dict[str, object]) -> float:
    seconds = operation["seconds"]
    return seconds if isinstance(seconds, float) else 0.0
