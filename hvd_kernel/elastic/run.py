"""``elastic.run``: a function that trains is called again, from the last commit, until it returns on all ranks.

Terms.
  recovery  the ranks meet again (shutdown, init), restore the last commit, and the function is called again
  ended     a rank has left the function by an exception that is no recovery's business: the others must not wait for it

A rank that fails alone aborts communication, so that its peers are released from whatever they wait in; they recover
with it. That they wait for each other at the function's end closes the last gap: no rank returns while another one
still has to go back.

Under an elastic driver (membership.py) the ranks that meet again may be others, and more or fewer of them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

from hvd_kernel.core import ops, session
from hvd_kernel.elastic.membership import ENDED, RankMembership, membership
from hvd_kernel.elastic.peer_processes import PeerProcesses
from hvd_kernel.elastic.state import State
from hvd_kernel.elastic.updates import notification_manager
from hvd_kernel.errors import HorovodInternalError, HostsUpdatedInterrupt, HvdTimeout, OutOfMemory, RankDied

Train = Callable[..., Any]

ENDED_NOTE = f"({ENDED}: this rank does not come back to it)"  # whoever aborts for the error passes its notes on
_REASON_CHARS = 300
_REMEDIES: dict[type[HorovodInternalError], str] = {  # of what elastic.run raises, for whoever reads it
    RankDied: "elastic.run had nobody to replace the rank that died: start scripts with `hvdrun --min-np N`, and a "
    "notebook's ranks with `%hvd start --respawn auto`.",
    OutOfMemory: "elastic.run does not try again: there would be no more memory. Smaller tensors or batches need less.",
    HvdTimeout: "elastic.run waits HVD_ELASTIC_TIMEOUT (or HOROVOD_ELASTIC_TIMEOUT) seconds for all ranks to come.",
}
_LOG = logging.getLogger("hvd_kernel")


@overload
def run(func: Train, *, reset_limit: int | None = None) -> Train: ...
@overload
def run(func: None = None, *, reset_limit: int | None = None) -> Callable[[Train], Train]: ...
def run(func: Train | None = None, *, reset_limit: int | None = None) -> Train | Callable[[Train], Train]:
    """Decorate a function whose first argument is a State: when a collective fails it goes on from the last commit.

    All ranks call the function together, and none of them communicates before it but in ``hvd.init()``.

    Horovod's page: https://horovod.readthedocs.io/en/stable/elastic_include.html

    Parameters
    ----------
    func
        The function. Its further arguments, and what it returns, are its own.
    reset_limit
        Give up when the ranks would have to meet again more often than that; also HVD_RESET_LIMIT. None: never.

    Returns
    -------
    Callable
        The function, to be called in the same way.

    Raises
    ------
    HorovodInternalError
        From the call, on every rank: a rank has died (RankDied), has no memory (OutOfMemory) or has not come back
        within HVD_ELASTIC_TIMEOUT seconds (HvdTimeout), or the limit is reached; what else the function raises.

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
    """Return ``run`` for a framework whose operations raise errors of its own: the loop is told what they mean.

    Parameters
    ----------
    raised
        What its operations raise.
    translated
        Returns what such an error means here; the error itself where it is none of ours.
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
                meant = translated(error)
                if meant is error:
                    raise
                raise meant from error

        return run(train, reset_limit=reset_limit)

    return run_translated


def run_fn(func: Train, reset: Callable[[], Any] | None = None, reset_limit: int | None = None) -> Train:
    """Return the function, made elastic as by ``run``; with another way to meet again, where one is given.

    Parameters and errors as in ``run``.

    Parameters
    ----------
    reset
        Called without arguments where ``run`` has the ranks shut down and init.

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
            _release(f"{ENDED} with {_named(error)}")
            raise
        except BaseException as error:
            error.add_note(ENDED_NOTE)  # no abort: the program may catch it, on all ranks, and go on
            raise
        finally:
            notification_manager.remove_listener(state)
            peers.close()

    return wrapper


@dataclass(frozen=True)
class _Training:
    """What is called again and again, and who takes part."""

    call: Callable[[], Any]
    state: State
    peers: PeerProcesses
    members: RankMembership

    def attempt(self, cause: Exception | None) -> Any:
        """Call the function; first undo what the failure has left. Also in here a failure leads to a recovery."""
        if isinstance(cause, HorovodInternalError):
            self.state.recover()  # not before the old engine is gone, which may still write into the state's tensors
        if cause is not None:
            self.state.on_reset()
        keeps_values = isinstance(cause, HostsUpdatedInterrupt) and cause.skip_sync
        if self.peers.refresh(wants_sync=not keeps_values or bool(self.members.fresh)):
            self.state.sync_from(self.members.root, self.members.fresh)
        result = self.call()
        if session.is_initialized():
            _end_together()
        return result


def _until_done(training: _Training, reset: Callable[[], Any], reset_limit: int | None) -> Any:
    cause: Exception | None = None
    resets = 0
    while True:
        try:
            return training.attempt(cause)
        except (HorovodInternalError, HostsUpdatedInterrupt) as error:
            if not training.members.can_recover_from(error):
                raise
            cause = error
        resets += 1
        _check(resets, _limit(reset_limit), cause)
        _LOG.warning("elastic.run: the ranks are initialized again (reset %d): %s", resets, _named(cause))
        has_failed = isinstance(cause, HorovodInternalError)
        if has_failed:
            _release(_named(cause))
        training.members.leave(_named(cause) if has_failed else None, training.state.commit_number)
        reset()


def _end_together() -> None:
    """Return when no rank goes back any more.

    Of the second barrier only that all have come to it matters: a rank that is through may fail at once in what the
    user does next, and that is no reason to go back for those that are still on their way out.
    """
    ops.barrier()
    with contextlib.suppress(HorovodInternalError):
        ops.barrier()


def _limit(given: int | None) -> int | None:
    asked = session.setting("HVD_RESET_LIMIT")
    return int(asked) if given is None and asked else given


def _check(resets: int, limit: int | None, cause: Exception) -> None:
    if limit is not None and resets > limit:
        raise HorovodInternalError(
            f"Job has been shutdown after exceeding maximum number of resets ({limit}). The last cause: {_named(cause)}"
        ) from cause


def _release(reason: str) -> None:
    """End the waiting of the other ranks, unless their engine has ended already."""
    if session.is_initialized() and session.engine().aborted() is None:
        session.engine().abort(reason[:_REASON_CHARS])


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
