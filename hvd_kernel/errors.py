"""Exceptions of the project. This module imports none of our modules, no torch, no MPI and no extension.

The split is Horovod's (horovod/common/exceptions.py): an invalid call of one rank raises ``ValueError`` there; an error
that the ranks detect together raises ``HorovodInternalError`` on every rank.
"""

from __future__ import annotations

import re


class HorovodInternalError(RuntimeError):
    """An enqueued collective failed; the message names the rank that caused it, if there is one.

    Subclasses: Mismatch, RankFailed, RankDied, RankStalled, HvdTimeout, OutOfMemory (``hvd_kernel.errors``).

    Parameters
    ----------
    message
        Cause and remedy.
    rank
        The rank that caused it, or -1; an attribute too.

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
    """Ranks disagree about an operation (dtype, shape, kind, root, scale). The engine keeps working."""


class RankFailed(HorovodInternalError):
    """Another rank raised or was interrupted; the message has its exception. Re-initialise to continue."""


class RankDied(HorovodInternalError):
    """The process of another rank has ended."""


class RankStalled(HorovodInternalError):
    """Ranks waited too long for late or stopped ranks (SIGSTOP, a debugger), which the message names."""


BECAUSE_OF_ANOTHER = (RankFailed, RankDied, RankStalled)
"""Errors that name another rank as the root cause: the rank that raises them is not."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or removed: ``elastic.run`` resets the ranks, which keep their values. Nothing is restored.

    Parameters
    ----------
    skip_sync
        Hosts were only removed: the remaining ranks agree already, and need no sync. An attribute too.

    Examples
    --------
    >>> hvd.elastic.HostsUpdatedInterrupt(skip_sync=True).skip_sync
    True
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class StateLost(RuntimeError):
    """The ranks of an elastic job would continue from values that no rank has trained; the message names them."""


class HvdTimeout(HorovodInternalError, TimeoutError):
    """A deadline passed."""


class OutOfMemory(HorovodInternalError, MemoryError):
    """A rank lacks memory for an operation's result; the message names it. The engine keeps working."""


class ConfigError(ValueError):
    """A setting cannot be used; the message names the setting, its value and the remedy."""


class UsageError(ValueError):
    """A magic or command was called wrongly; the message has the right form."""


class RanksDiffer(RuntimeError):
    """A variable is not the same on all ranks; the message names the first part and the ranks."""


class ClusterError(RuntimeError):
    """The cluster could not be started, lost a rank, or does not exist; the message has the remedy."""


class NotInitialized(ValueError):
    """A call before ``init()``, with Horovod's message."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized; use hvd.init().")


def message_of(error: BaseException) -> str:
    """Return the message of an error; if the error's own code fails, Python's replacement text."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's code
        return "<exception str() failed>"


CALLBACK_FAILED = "Got the following error when running the callback: "
"""What a future of torch may write before name and message of an error that it passes on as a RuntimeError."""

_OF_FUTURE = re.compile(rf"(?:{CALLBACK_FAILED})?(?P<name>\w+): (?P<message>.*?)(?:\n\nAt:\n.*)?", re.DOTALL)
_KEPT = {kind.__name__: kind for kind in (HorovodInternalError, Mismatch, OutOfMemory, HvdTimeout, *BECAUSE_OF_ANOTHER)}


def without_future(error: BaseException) -> BaseException:
    """Return the error of ours that a future of torch has turned into a RuntimeError, else the error itself.

    Futures keep name and message alone, and so does DDP's backward.

    Examples
    --------
    >>> without_future(RuntimeError("RankDied: rank 1 died"))
    RankDied('rank 1 died')
    """
    kept = _OF_FUTURE.fullmatch(message_of(error)) if type(error) is RuntimeError else None
    kind = _KEPT.get(kept["name"]) if kept else None
    return error if kept is None or kind is None else kind(kept["message"])
