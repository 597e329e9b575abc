"""Enqueued operations: what the core is given of each, and the handles by which it is waited for. No framework.

Terms.
  place   (pointer, shape, dtype), see tensor; in and out: (input pointer, output pointer, shape, dtype)
  handle  the core's number of an enqueued operation; known until it was waited for
  finish  called once with the core's Outcome (None where there is nothing to tell) when the operation has succeeded;
          gives the result. It is held until then and must itself hold whatever owns the memory: the core writes there.
  waits   the caller waits for the operation next, so it may begin on the caller's own thread
  fast    begun in one function of the core, see FastCalls: known by its engine, its tensor and its result, no finish
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from hvd_kernel.core import call_stack, session
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import SCATTERED, Place, check_op
from hvd_kernel.errors import HorovodInternalError, NotInitialized

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

Finish = Callable[[Any], Any]
InOut = tuple[int, int, tuple[int, ...], int] | tuple[int, int, tuple[int, ...], int, int, int]
Scales = tuple[float, float]  # before and after the reduction

_live: dict[int, tuple[Engine, Finish] | tuple[Engine, Any, Any]] = {}
_FAST: Final = 3  # (engine, tensor, result) instead of (engine, finish)
_entering: list[Finish] = []  # of operations that are being enqueued: the core may have the memory, nobody the handle
_owner: Engine | None = None  # the engine whose handles _live holds
_synchronize_fast: Callable[..., Any]  # the core's, once a rank has loaded it


def current_engine() -> Engine:
    """Return the engine, and forget the handles of the one before it: their numbers come again.

    Raises
    ------
    HorovodInternalError
        Before ``init``, with Horovod's sentence.
    """
    global _owner  # noqa: PLW0603 - one table of handles per process, as there is one engine
    try:
        engine = session.engine()
    except NotInitialized as error:
        raise HorovodInternalError(str(error)) from None
    if engine is not _owner:
        _live.clear()
        _entering.clear()
        _owner = engine
    return engine


def _enqueued(engine: Engine, finish: Finish, enqueue: Callable[..., int], *how: Any) -> int:
    """Enqueue, and hold ``finish`` from before: an interrupt may come while the core has the memory, nobody the handle.

    It is held until the engine ends then.
    """
    _entering.append(finish)
    try:
        handle = enqueue(*how)
    except Exception:
        _entering.remove(finish)  # refused: the core has nothing
        raise
    _live[handle] = (engine, finish)
    _entering.remove(finish)
    return handle


def _fast_functions(kind: type, parameter: type, exchange: Any) -> tuple[Callable[..., Any], ...] | None:
    global _synchronize_fast  # noqa: PLW0603 - of the process, as the core
    from hvd_kernel import _native  # noqa: PLC0415 - only a rank loads the extension

    _synchronize_fast = _native.fast_synchronize
    return _native.fast_allreduce(kind, parameter, exchange, global_process_set, _live, current_engine)


_FUNCTIONS: Final = "allreduce", "allreduce_async", "grouped", "grouped_async"  # in the core's order


def _declines(*_: Any) -> None:
    return None


class FastCalls:
    """The core's functions for the usual allreduce of one framework's tensors, asked for at the first call.

    All take (tensor, out, average, name, op, prescale, postscale, process set). The output is the tensor where ``out``
    is, else ``out(tensor)`` makes it. ``allreduce`` waits and returns the output, ``allreduce_async`` returns a handle;
    ``grouped`` and ``grouped_async`` take a list or tuple of tensors, and their output is a tuple. None: nothing has
    happened, it is not the usual case, and the ordinary way finds out what it is. Before ``init`` they decline so, and
    for ever where the core cannot read such tensors.

    Parameters
    ----------
    kind, parameter
        The types of tensors that they take, exactly these.
    exchange
        DLPack's functions of these types; None: they have Python's buffers.
    readable
        False: the core has no way to read them.
    """

    allreduce: Callable[..., Any]
    allreduce_async: Callable[..., int | None]
    grouped: Callable[..., Any]
    grouped_async: Callable[..., int | None]

    def __init__(self, kind: type, parameter: type, exchange: Any = None, *, readable: bool = True) -> None:
        self._kind = kind, parameter, exchange
        self._readable = readable
        self.ask_again()

    def ask_again(self) -> None:
        """Ask the core at the next call."""
        for name in _FUNCTIONS:
            setattr(self, name, functools.partial(self._first, name))

    def _first(self, name: str, *call: Any) -> Any:
        if not session.is_initialized():
            return None
        found = _fast_functions(*self._kind) if self._readable else None
        for each, function in zip(_FUNCTIONS, found or [_declines] * len(_FUNCTIONS), strict=True):
            setattr(self, each, function)
        return getattr(self, name)(*call)


def allreduce_places(  # noqa: PLR0917 - the core's order
    name: str, places: Sequence[InOut], op: int, scales: Scales, finish: Finish, group: int = 0, waits: bool = False
) -> int:
    """Enqueue; several places are one operation: reduced together or not at all. ``group``: a process set's id."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.allreduce, name, places, op, scales[0], scales[1], group, waits)


def reducescatter_places(  # noqa: PLR0917 - the core's order
    name: str, places: Sequence[InOut], op: int, scales: Scales, finish: Finish, group: int = 0, waits: bool = False
) -> int:
    """Enqueue; each output has room for this rank's rows.

    Raises
    ------
    HorovodInternalError
        The operation is not Average or Sum: on every rank alike, before they talk about it.
    """
    check_op(op)
    if op not in SCATTERED:
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    engine = current_engine()
    return _enqueued(engine, finish, engine.reducescatter, name, places, op, scales[0], scales[1], group, waits)


def allgather_places(name: str, places: Sequence[Place], finish: Finish, group: int = 0, *, waits: bool = False) -> int:
    """Enqueue; ``finish`` gets a Buffer per place that holds every rank's rows."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.allgather, name, places, group, waits)


def broadcast_places(  # noqa: PLR0917 - the core's order
    name: str, places: Sequence[InOut], root_rank: int, finish: Finish, group: int = 0, waits: bool = False
) -> int:
    """Enqueue; the root's memory arrives in everyone's output. ``root_rank`` is a global rank also in a set."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.broadcast, name, places, root_rank, group, waits)


def alltoall_place(
    name: str, place: Place, splits: Sequence[int] | None, finish: Finish, group: int = 0, *, waits: bool = False
) -> int:
    """Enqueue; ``finish`` gets the Buffer of what came, and how many rows came from each rank."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.alltoall, name, place, splits, group, waits)


def poll(handle: int) -> bool:
    """Tell whether ``synchronize`` would return at once.

    Parameters
    ----------
    handle : int
        What an operation that ends in ``_async`` or ``_async_`` has returned.

    Raises
    ------
    ValueError
        The handle was never given out, or was already waited for.

    Examples
    --------
    >>> handle = hvd.allreduce_async(torch.ones(2))
    >>> hvd.poll(handle) in {True, False}
    True
    >>> hvd.synchronize(handle)
    tensor([1., 1.])
    >>> hvd.poll(10**6)
    Traceback (most recent call last):
    ValueError: Handle 1000000 was not created or has been cleared.
    """
    entry = _live.get(handle)
    if entry is None:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return entry[0].poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; None for a handle that is unknown or was already waited for.

    Other threads run meanwhile. An interrupt ends the wait, not the operation: the handle can be waited for again.

    Parameters
    ----------
    handle : int
        What an operation that ends in ``_async`` or ``_async_`` has returned.

    Raises
    ------
    HorovodInternalError
        On every rank that takes part: the ranks disagree (Mismatch: they may go on), one has failed or died
        (RankFailed, RankDied), or the wait was too long (RankStalled).

    Examples
    --------
    >>> handle = hvd.broadcast_async(torch.arange(3), root_rank=0)
    >>> hvd.synchronize(handle)
    tensor([0, 1, 2])
    >>> hvd.synchronize(handle) is None
    True
    """
    entry = _live.get(handle)
    if entry is None:
        return None
    if len(entry) == _FAST:
        return _synchronize_fast(_live, handle, entry)
    engine, finish = entry
    try:
        outcome = engine.wait(handle)
    except BaseException:
        if not _in_flight(engine, handle):
            _live.pop(handle, None)
        raise
    _live.pop(handle, None)
    return finish(outcome)


def _in_flight(engine: Engine, handle: int) -> bool:
    """Tell whether the core still uses the handle's memory: an interrupt ended the wait, not the operation."""
    try:
        engine.poll(handle)
    except ValueError:
        return False
    return True


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank of the set has called it.

    Parameters
    ----------
    process_set
        The ranks that wait for each other; this rank is one of them.

    Raises
    ------
    ValueError
        On this rank alone: it is not a member of the set, or the set is not registered.
    HorovodInternalError
        A rank has failed, or this one is not initialised.

    Examples
    --------
    >>> hvd.barrier()
    """
    group = set_id(process_set, "Barrier")
    engine = current_engine()
    # Horovod's name: a barrier meets a barrier.
    synchronize(_enqueued(engine, _nothing, engine.barrier, "barrier.noname", group, True))


def join(device: int = -1) -> int:  # noqa: ARG001 - Horovod's: the GPU on which it makes zeros
    """Take part in the other ranks' allreduces with nothing of one's own until all ranks have joined.

    For ranks with fewer batches than others: Average still divides by all ranks; Min, Max and Product leave those that
    have joined out. Allgather, broadcast, alltoall and reducescatter fail meanwhile (Mismatch) on the ranks that call
    them. Ranks have started different numbers of operations then: those that follow need names.

    Parameters
    ----------
    device
        Horovod's: the GPU for its zeros. Taken, and not needed here.

    Returns
    -------
    int
        The rank that joined last, the same everywhere.

    Raises
    ------
    HorovodInternalError
        A rank has failed, or this one is not initialised.

    Examples
    --------
    >>> 0 <= hvd.join() < hvd.size()
    True

    On two ranks:

    >>> for batch in range(1 + hvd.rank()):
    ...     mean = hvd.allreduce(torch.tensor(6.0), name="loss")
    >>> hvd.join() in {0, 1}
    True
    >>> float(mean) == [6.0, 3.0][hvd.rank()]  # in the second batch rank 1 was alone
    True
    """
    engine = current_engine()
    last: int = synchronize(_enqueued(engine, _number, engine.join))
    return last


def _nothing(_outcome: Any) -> None:
    return None


def _number(outcome: Any) -> int:
    return int(outcome.number)


call_stack.register_core_caller(__name__)  # by the first fast call
