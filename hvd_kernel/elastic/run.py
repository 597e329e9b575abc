"""``elastic.run``: calls a training function again, from the last commit, until it returns on all ranks.

Terms.
  recovery  the ranks reset (shutdown, init), restore the last commit, and call the function again
  ended     a rank has left the function by an exception without recovery: the other ranks must not wait for it

A rank that fails alone aborts communication, which releases its peers from any operation in which they wait; they
recover with it. The ranks also wait for each other at the function's end: no rank returns while another one still has
to recover.

With an elastic driver (membership.py) a reset may change the ranks and their number.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

from hvd_kernel.core import ops, session
from hvd_kernel.elastic.membership import ENDED, PeerProcesses, RankMembership, membership
from hvd_kernel.elastic.state import State
from hvd_kernel.elastic.updates import notification_manager
from hvd_kernel.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HvdTimeout,
    Mismatch,
    OutOfMemory,
    RankDied,
    without_future,
)

Train = Callable[..., Any]

ENDED_NOTE = f"({ENDED}: this rank does not come back to it)"  # an abort for the error includes its notes
_REASON_CHARS = 300
_CLAUSES = str.maketrans({".": ";", "(": ";", ",": " ", ":": " "})
_REMEDIES: dict[type[HorovodInternalError], str] = {  # notes that elastic.run adds to the errors that it raises
    RankDied: "elastic.run cannot replace the rank that died: start scripts with `hvdrun --min-np N`, and a "
    "notebook's ranks with `%hvd start --respawn auto`.",
    OutOfMemory: "elastic.run does not try again: there would be no more memory. Smaller tensors or batches need less.",
    Mismatch: "elastic.run does not try a third time: the same code would lead to the same mismatch.",
    HvdTimeout: "elastic.run waits HVD_ELASTIC_TIMEOUT (or HOROVOD_ELASTIC_TIMEOUT) seconds for all ranks to join.",
}
_LOG = logging.getLogger("hvd_kernel")


@overload
def run(func: Train, *, reset_limit: int | None = None) -> Train: ...
@overload
def run(func: None = None, *, reset_limit: int | None = None) -> Callable[[Train], Train]: ...
def run(func: Train | None = None, *, reset_limit: int | None = None) -> Train | Callable[[Train], Train]:
    """Decorate a function whose first argument is a State: after a failed collective it continues from the last commit.

    All ranks call the function together, and no rank communicates before it except in ``hvd.init()``.

    Horovod's page: https://horovod.readthedocs.io/en/stable/elastic_include.html

    Parameters
    ----------
    func
        The function. Its further arguments and its result are passed through.
    reset_limit
        Maximum number of resets, after which an error is raised; by default HVD_RESET_LIMIT, else unlimited.

    Returns
    -------
    Callable
        A function with the same signature.

    Raises
    ------
    HorovodInternalError
        From the call, on every rank: a rank has died (RankDied), lacks memory (OutOfMemory) or has not joined again
        within HVD_ELASTIC_TIMEOUT seconds (HvdTimeout), or the limit is reached. Other errors of the function pass.

    Examples
    --------
    >>> @hvd.elastic.run
    ... def train(state):
    ...     while state.epoch < 3:
    ...         hvd.allreduce(torch.ones(1))
    ...         state.epoch += 1
    ...         state.commit()
    ...     return state.epoch
    >>> train(hvd.elastic.ObjectState(epoch=0))
    3
    """
    if func is None:
        return functools.partial(run, reset_limit=reset_limit)
    return run_fn(func, reset_limit=reset_limit)


def translating(raised: tuple[type[Exception], ...], translated: Callable[[BaseException], BaseException]) -> Any:
    """Return ``run`` for a framework whose operations raise their own errors, which are translated to ours.

    Parameters
    ----------
    raised
        Types of errors that its operations raise.
    translated
        Returns our error for such an error; the error itself if it is not ours.
    """

    @functools.wraps(run)
    def run_translated(func: Train | None = None, *, reset_limit: int | None = None) -> Any:
        if func is None:
            return functools.partial(run_translated, reset_limit=reset_limit)

        @functools.wraps(func)
        def train(*args: Any, **kwargs: Any) -> Any:
            try:
                return func(*args, **kwargs)
            except raised as error:
                translation = translated(error)
                if translation is error:
                    raise
                raise translation from error

        return run(train, reset_limit=reset_limit)

    return run_translated


def run_fn(func: Train, reset: Callable[[], Any] | None = None, reset_limit: int | None = None) -> Train:
    """Return the function, made elastic as by ``run``, optionally with another way to reset.

    Parameters and errors as in ``run``.

    Parameters
    ----------
    reset
        Called without arguments instead of the reset of ``run``, which shuts down and initialises the ranks.

    Examples
    --------
    >>> train = hvd.elastic.run_fn(lambda state, more: state.epoch + more)
    >>> train(hvd.elastic.ObjectState(epoch=1), 2)
    3
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        peers, members = PeerProcesses(), membership()
        notification_manager.register_listener(state)
        session.allow_collectives()
        call = functools.partial(func, state, *args, **kwargs)
        try:
            with members.entered(resumes=state.resumes):
                return _until_done(
                    _Training(call, state, peers, members),
                    reset or functools.partial(members.reset_communicator, peers),
                    reset_limit,
                )
        except HorovodInternalError as error:
            for remedy in (text for kind, text in _REMEDIES.items() if isinstance(error, kind)):
                error.add_note(remedy)
            _release_ranks(f"{ENDED} with {_description(error)}")
            raise
        except BaseException as error:
            error.add_note(ENDED_NOTE)  # no abort: the program may catch it, on all ranks, and continue
            raise
        finally:
            notification_manager.remove_listener(state)
            peers.close()

    return wrapper


@dataclass(frozen=True)
class _Training:
    """The function of one ``elastic.run``, its state, and the ranks that take part."""

    call: Callable[[], Any]
    state: State
    peers: PeerProcesses
    members: RankMembership

    def attempt(self, cause: Exception | None) -> Any:
        """Undo the effects of a failure, sync, and call the function. A failure in any of this leads to a recovery."""
        if isinstance(cause, HorovodInternalError):
            self.state.recover()  # after the end of the old engine, which may write into the state's tensors
        if cause is not None:
            self.state.on_reset()
        keeps_values = isinstance(cause, HostsUpdatedInterrupt) and cause.skip_sync
        if self.peers.refresh(wants_sync=not keeps_values or bool(self.members.fresh)):
            self.state.sync_from(self.members.root, self.members.fresh)
        result = self._called()
        if session.is_initialized():
            _end_together()
        return result

    def _called(self) -> Any:
        try:
            return self.call()
        except RuntimeError as error:
            cause = without_future(error)  # in DDP's backward
            if cause is error:
                raise
            raise cause from error


def _until_done(training: _Training, reset: Callable[[], Any], reset_limit: int | None) -> Any:
    cause: Exception | None = None
    resets = begun_from = 0
    while True:
        try:
            return training.attempt(cause)
        except (HorovodInternalError, HostsUpdatedInterrupt) as error:
            if not training.members.can_recover_from(error) or _is_repeated(error, cause, training.state, begun_from):
                raise
            cause, begun_from = error, training.state.commit_number
        resets += 1
        _check(resets, _limit(reset_limit), cause)
        _LOG.warning("elastic.run: the ranks are initialized again (reset %d): %s", resets, _description(cause))
        has_failed = isinstance(cause, HorovodInternalError)
        if has_failed:
            _release_ranks(_description(cause))
        training.members.leave(_description(cause) if has_failed else None, training.state.commit_number)
        reset()


def _is_repeated(error: Exception, cause: Exception | None, state: State, begun_from: int) -> bool:
    """Return whether the ranks have disagreed in the same way twice, without a commit in between."""
    pairs, previous = _mismatch_pairs(error), _mismatch_pairs(cause)
    return bool(pairs and previous) and (pairs <= previous or previous <= pairs) and state.commit_number == begun_from


def _mismatch_pairs(error: Exception | None) -> frozenset[tuple[str, str]]:
    """Return the adjacent words, by clause, of a Mismatch that this rank has raised, or that a RankFailed reports.

    A set, because the message lists operations in the order in which the ranks requested them, which may change. The
    last pair is left out: an abort's reason is cut to ``_REASON_CHARS``.
    """
    if not isinstance(error, HorovodInternalError):
        return frozenset()
    _, _, message = _description(error).partition(f"{Mismatch.__name__}: ")
    clauses = message.translate(_CLAUSES).split(";")
    return frozenset([pair for clause in clauses for pair in pairwise(clause.split())][:-1])


def _end_together() -> None:
    """Return when no rank can need a recovery any more.

    A failure of the second barrier is ignored: all ranks have passed the first one, and a rank that has returned may
    fail in the user's next statement, which is no reason for the others to recover.
    """
    ops.barrier()
    with contextlib.suppress(HorovodInternalError):
        ops.barrier()


def _limit(reset_limit: int | None) -> int | None:
    default = session.setting("HVD_RESET_LIMIT")
    return int(default) if reset_limit is None and default else reset_limit


def _check(resets: int, limit: int | None, cause: Exception) -> None:
    if limit is not None and resets > limit:
        raise HorovodInternalError(
            f"Job has been shutdown after exceeding maximum number of resets ({limit}). The last cause: "
            f"{_description(cause)}"
        ) from cause


def _release_ranks(reason: str) -> None:
    """Abort the operations in which other ranks wait, unless the engine has ended already."""
    if session.is_initialized() and session.engine().aborted() is None:
        session.engine().abort(reason[:_REASON_CHARS])


def _description(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
