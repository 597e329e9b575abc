"""Every exception of the project. A shared leaf: imports nothing of ours, no torch, no MPI, no extension.

Horovod's split is kept (horovod/common/exceptions.py): what one rank's own call does wrong is a ``ValueError`` from
that call; what the ranks find out together is a ``HorovodInternalError`` on every rank.
"""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An enqueued collective failed; the message names the rank that caused it, where there is one.

    Kinds of it say more: Mismatch, RankFailed, RankDied, RankStalled, HvdTimeout, OutOfMemory (``hvd_kernel.errors``).

    Parameters
    ----------
    message
        What has happened, and what to do.
    rank
        The rank that caused it, -1 where there is none; an attribute too.

    Examples
    --------
    >>> try:
    ...     hvd.reducescatter(torch.ones(2), op=hvd.Max)
    ... except hvd.HorovodInternalError as error:
    ...     print(error, error.rank)
    Reducescatter currently only supports AVERAGE and SUM. -1
    """

    rank: int

    def __init__(self, message: str = "", rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


class Mismatch(HorovodInternalError):
    """Ranks disagree about an operation (dtype, shape, kind, root, scale). The engine works on."""


class RankFailed(HorovodInternalError):
    """Another rank raised or was interrupted; the message carries its exception. Re-initialise to go on."""


class RankDied(HorovodInternalError):
    """Another rank's process is gone."""


class RankStalled(HorovodInternalError):
    """Ranks waited too long for others, or for one that is stopped (SIGSTOP, a debugger); the message names them."""


BECAUSE_OF_ANOTHER = (RankFailed, RankDied, RankStalled)
"""Each names another rank as the one to look at: who raises it is not the root cause."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts come or go: ``elastic.run`` lets the ranks meet again and keeps what they have. Nothing is restored.

    Parameters
    ----------
    skip_sync
        Hosts only go: those who stay agree already, and need not take rank 0's values. An attribute too.

    Examples
    --------
    >>> hvd.elastic.HostsUpdatedInterrupt(skip_sync=True).skip_sync
    True
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync  # hosts only go: those who stay agree already


class StateLost(RuntimeError):
    """The ranks of an elastic job would go on from values that none of them has trained; the message says which."""


class HvdTimeout(HorovodInternalError, TimeoutError):
    """A deadline passed."""


class OutOfMemory(HorovodInternalError, MemoryError):
    """A rank, which is named, has no memory for an operation's result. The engine works on."""


class ConfigError(ValueError):
    """A setting cannot be used; the message names the setting, its value and the remedy."""


class UsageError(ValueError):
    """A magic or command was called wrongly; the message says how to call it."""


class RanksDiffer(RuntimeError):
    """A variable is not the same on all ranks; the message names the first part and the ranks."""


class ClusterError(RuntimeError):
    """The cluster could not be started, lost a rank, or is not there; the message says what to do."""


class NotInitialized(ValueError):
    """Horovod's sentence for every call before ``init()``."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized; use hvd.init().")


def said(error: BaseException) -> str:
    """Return what an error says; where its own code fails at that, Python's words for it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's code
        return "<exception str() failed>"
