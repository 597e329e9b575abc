"""Enqueued operations: how each is passed to the core, and the handles used to wait for it. No framework.

Terms.
  place   (pointer, shape, dtype), see tensor; in and out: (input pointer, output pointer, shape, dtype)
  handle  the core's number of an enqueued operation; valid until it was waited for
  finish  called once with the core's Outcome (None if it has none) when the operation has succeeded; returns the
          result. It is kept alive until then and must itself keep the owner of the memory alive: the core writes there.
  waits   the caller waits for the operation next, so it may begin on the caller's own thread
  fast    begun in one function of the core, see FastCalls: stored as engine, tensor and result, without finish
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
_entering: list[Finish] = []  # of operations being enqueued: the core may use the memory before the handle is known
_owner: Engine | None = None  # the engine whose handles _live holds
_synchronize_fast: Callable[..., Any]  # the core's function, once a rank has loaded it


def current_engine() -> Engine:
    """Return the engine, and forget the handles of the previous engine, whose numbers are reused.

    Raises
    ------
    HorovodInternalError
        Before ``init``, with Horovod's message.
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
    """Enqueue, keeping ``finish`` alive first: an interrupt may arrive after the core took the memory.

    The handle is not known then, and ``finish`` is kept until the engine ends.
    """
    _entering.append(finish)
    try:
        handle = enqueue(*how)
    except Exception:
        _entering.remove(finish)  # rejected: the core does not use the memory
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
    """The core's functions for the usual allreduce of one framework's tensors, created at the first call.

    All take (tensor, out, average, name, op, prescale, postscale, process set). The output is the tensor ``out``, or
    the result of ``out(tensor)``. ``allreduce`` waits and returns the output, ``allreduce_async`` returns a handle;
    ``grouped`` and ``grouped_async`` take a list or tuple of tensors, and their output is a tuple. Those that wait also
    take a timeout in seconds, after which HvdTimeout is raised and the operation goes on; the core then uses the name
    as it is, without ``allreduce.`` before it. A function returns None, without any effect, for calls that it does not
    cover; the caller then takes the general path. Before ``init``, and for tensors that the core cannot read, all calls
    return None.

    Parameters
    ----------
    kind, parameter
        The exact types of tensors that they take.
    exchange
        DLPack's functions of these types; None for types with Python's buffer protocol.
    readable
        Whether the core can read such tensors.
    """

    allreduce: Callable[..., Any]
    allreduce_async: Callable[..., int | None]
    grouped: Callable[..., Any]
    grouped_async: Callable[..., int | None]

    def __init__(self, kind: type, parameter: type, exchange: Any = None, *, readable: bool = True) -> None:
        self._kind = kind, parameter, exchange
        self._readable = readable
        self.reset()

    def reset(self) -> None:
        """Create the functions again at the next call."""
        for name in _FUNCTIONS:
            setattr(self, name, functools.partial(self._first, name))

    def _first(self, name: str, *call: Any) -> Any:
        if not session.is_initialized():
            return None
        functions = _fast_functions(*self._kind) if self._readable else None
        for attribute, function in zip(_FUNCTIONS, functions or [_declines] * len(_FUNCTIONS), strict=True):
            setattr(self, attribute, function)
        return getattr(self, name)(*call)


def allreduce_places(  # noqa: PLR0917 - the core's order
    name: str, places: Sequence[InOut], op: int, scales: Scales, finish: Finish, group: int = 0, waits: bool = False
) -> int:
    """Enqueue an allreduce; several places are reduced together or not at all. ``group`` is a process set's id."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.allreduce, name, places, op, scales[0], scales[1], group, waits)


def reducescatter_places(  # noqa: PLR0917 - the core's order
    name: str, places: Sequence[InOut], op: int, scales: Scales, finish: Finish, group: int = 0, waits: bool = False
) -> int:
    """Enqueue a reducescatter; each output has room for this rank's rows.

    Raises
    ------
    HorovodInternalError
        The operation is not Average or Sum; raised on every rank, before any negotiation.
    """
    check_op(op)
    if op not in SCATTERED:
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    engine = current_engine()
    return _enqueued(engine, finish, engine.reducescatter, name, places, op, scales[0], scales[1], group, waits)


def allgather_places(name: str, places: Sequence[Place], finish: Finish, group: int = 0, *, waits: bool = False) -> int:
    """Enqueue an allgather; ``finish`` gets a Buffer per place that holds every rank's rows."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.allgather, name, places, group, waits)


def broadcast_places(  # noqa: PLR0917 - the core's order
    name: str, places: Sequence[InOut], root_rank: int, finish: Finish, group: int = 0, waits: bool = False
) -> int:
    """Enqueue a broadcast of the root's memory to every output. ``root_rank`` is a global rank also in a set."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.broadcast, name, places, root_rank, group, waits)


def alltoall_place(
    name: str, place: Place, splits: Sequence[int] | None, finish: Finish, group: int = 0, *, waits: bool = False
) -> int:
    """Enqueue an alltoall; ``finish`` gets the Buffer of received rows, and their number from each rank."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.alltoall, name, place, splits, group, waits)


def send_places(places: Sequence[InOut], destination: int, tag: int, finish: Finish, *, waits: bool = False) -> int:
    """Enqueue a message to a rank, which is complete when that rank has received it."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.send, places, destination, tag, waits)


def recv_places(places: Sequence[InOut], source: int, tag: int, finish: Finish, *, waits: bool = False) -> int:
    """Enqueue the receipt of a message of a rank with the same tag."""
    engine = current_engine()
    return _enqueued(engine, finish, engine.recv, places, source, tag, waits)


def poll(handle: int) -> bool:
    """Return whether ``synchronize`` would return immediately.

    Parameters
    ----------
    handle : int
        What an operation that ends in ``_async`` or ``_async_`` has returned.

    Raises
    ------
    ValueError
        The handle does not exist, or was already waited for.

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
    """Wait for an operation and return its result; None for a handle that does not exist or was already waited for.

    Other threads run meanwhile. An interrupt ends the wait, not the operation: the handle can be waited for again.

    Parameters
    ----------
    handle : int
        What an operation that ends in ``_async`` or ``_async_`` has returned.

    Raises
    ------
    HorovodInternalError
        On every rank that takes part: the ranks disagree (Mismatch, after which they may continue), a rank has failed
        or died (RankFailed, RankDied), or the wait was too long (RankStalled).

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
    """Return whether the core still uses the handle's memory: an interrupt ended the wait, not the operation."""
    try:
        engine.poll(handle)
    except ValueError:
        return False
    return True


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Block until every rank of the set has called this.

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
    enter_barrier("barrier.noname", set_id(process_set, "Barrier"))  # Horovod's name: barriers match each other


def enter_barrier(name: str, group: int = 0) -> None:
    """Block until every rank of a process set, of which ``group`` is the id, has called this with the name."""
    engine = current_engine()
    synchronize(_enqueued(engine, _nothing, engine.barrier, name, group, True))


def join(device: int = -1) -> int:  # noqa: ARG001 - Horovod's: the GPU on which it makes zeros
    """Take part in the other ranks' allreduces without contributing, until all ranks have joined.

    For ranks with fewer batches than others: Average still divides by all ranks; Min, Max and Product leave out ranks
    that have joined. Allgather, broadcast, alltoall and reducescatter fail meanwhile (Mismatch) on the ranks that call
    them. Afterwards the ranks have started different numbers of operations, so later operations need names.

    Parameters
    ----------
    device
        Accepted for Horovod, whose join allocates zeros on this GPU; not used here.

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
