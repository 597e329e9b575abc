"""Collectives without a framework: on memory, held until the handle completes, and on NumPy arrays.

Words.
  place   (pointer, shape, dtype), see tensor; in and out: (input pointer, output pointer, shape, dtype)
  handle  the core's number of an enqueued operation; known until it was waited for
  finish  called once with the core's Outcome (None where there is nothing to tell) when the operation has succeeded;
          gives the result. It is held until then and must itself hold whatever owns the memory: the core writes there.
  waits   the caller waits for the operation next, so it may begin on the caller's own thread
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from hvd_kernel.core import session
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import (
    SCATTERED,
    Adasum,
    Array,
    Average,
    Max,
    Min,
    Place,
    Product,
    Sum,
    check_op,
    check_reducible,
    dtype_of,
    from_buffer,
    place_of,
)
from hvd_kernel.errors import HorovodInternalError, NotInitialized

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum"]

Finish = Callable[[Any], Any]
InOut = tuple[int, int, tuple[int, ...], int] | tuple[int, int, tuple[int, ...], int, int, int]
Scales = tuple[float, float]  # before and after the reduction

_live: dict[int, tuple[Engine, Finish]] = {}
_entering: list[Finish] = []  # of operations that are being enqueued: the core may have the memory, nobody the handle
_owner: Engine | None = None  # the engine whose handles _live holds


def _engine() -> Engine:
    """Return the engine, and forget the handles of the one before it: their numbers come again."""
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


def allreduce_places(  # noqa: PLR0917 - the core's order
    name: str, places: Sequence[InOut], op: int, scales: Scales, finish: Finish, group: int = 0, waits: bool = False
) -> int:
    """Enqueue; several places are one operation: reduced together or not at all. ``group``: a process set's id."""
    engine = _engine()
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
    engine = _engine()
    return _enqueued(engine, finish, engine.reducescatter, name, places, op, scales[0], scales[1], group, waits)


def allgather_places(name: str, places: Sequence[Place], finish: Finish, group: int = 0, *, waits: bool = False) -> int:
    """Enqueue; ``finish`` gets a Buffer per place that holds every rank's rows."""
    engine = _engine()
    return _enqueued(engine, finish, engine.allgather, name, places, group, waits)


def broadcast_places(  # noqa: PLR0917 - the core's order
    name: str, places: Sequence[InOut], root_rank: int, finish: Finish, group: int = 0, waits: bool = False
) -> int:
    """Enqueue; the root's memory arrives in everyone's output. ``root_rank`` is a global rank also in a set."""
    engine = _engine()
    return _enqueued(engine, finish, engine.broadcast, name, places, root_rank, group, waits)


def alltoall_place(
    name: str, place: Place, splits: Sequence[int] | None, finish: Finish, group: int = 0, *, waits: bool = False
) -> int:
    """Enqueue; ``finish`` gets the Buffer of what came, and how many rows came from each rank."""
    engine = _engine()
    return _enqueued(engine, finish, engine.alltoall, name, place, splits, group, waits)


def poll(handle: int) -> bool:
    """Tell whether ``synchronize`` would return at once.

    Raises
    ------
    ValueError
        The handle was never given out, or was already waited for.
    """
    entry = _live.get(handle)
    if entry is None:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return entry[0].poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; None for a handle that is unknown or was already waited for."""
    entry = _live.get(handle)
    if entry is None:
        return None
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
    """Return when every rank of the set has called it."""
    group = set_id(process_set, "Barrier")
    engine = _engine()
    # Horovod's name: a barrier meets a barrier.
    synchronize(_enqueued(engine, _nothing, engine.barrier, "barrier.noname", group, True))


def join(device: int = -1) -> int:  # noqa: ARG001 - Horovod's: the GPU on which it makes zeros
    """Take part in the other ranks' allreduces with nothing of one's own until all ranks have joined.

    Returns
    -------
    int
        The rank that joined last, the same everywhere.
    """
    engine = _engine()
    last: int = synchronize(_enqueued(engine, _number, engine.join))
    return last


def _nothing(_outcome: Any) -> None:
    return None


def _number(outcome: Any) -> int:
    return int(outcome.number)


# NumPy


def allreduce(  # noqa: PLR0917 - Horovod's order
    array: Array,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Return the average, sum ... of every rank's array."""
    return _reduced([array], named("allreduce", name), op, (prescale_factor, postscale_factor), process_set)[0]


def grouped_allreduce(  # noqa: PLR0917 - Horovod's order
    arrays: Sequence[Array],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce several arrays, together or not at all."""
    some(arrays, "grouped_allreduce")
    scales = (prescale_factor, postscale_factor)
    return _reduced(arrays, named("grouped_allreduce", name), op, scales, process_set)


def _reduced(arrays: Sequence[Array], name: str, op: int, scales: Scales, process_set: ProcessSet) -> list[Array]:
    group = set_id(process_set, "Allreduce")
    for array in arrays:
        check_reducible(dtype_of(array), op)
    places, finish = _out_of_place(arrays)
    result: list[Array] = synchronize(allreduce_places(name, places, op, scales, finish, group, waits=True))
    return result


def allgather(array: Array, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Return every rank's rows, one after the other; the number of rows may differ."""
    return _gathered([array], named("allgather", name), process_set)[0]


def grouped_allgather(
    arrays: Sequence[Array], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Gather the rows of several arrays, together or not at all."""
    some(arrays, "grouped_allgather")
    return _gathered(arrays, named("grouped_allgather", name), process_set)


def _gathered(arrays: Sequence[Array], name: str, process_set: ProcessSet) -> list[Array]:
    group = set_id(process_set, "Allgather")
    sources = [_contiguous(array) for array in arrays]

    def finish(outcome: Any) -> list[Array]:
        return [from_buffer(one, source.dtype) for one, source in zip(outcome.buffers, sources, strict=True)]

    places = [place_of(source) for source in sources]
    result: list[Array] = synchronize(allgather_places(name, places, finish, group, waits=True))
    return result


def broadcast(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Return the root's array on every rank."""
    group = set_id(process_set, "Broadcast")
    places, finish = _out_of_place([array])
    handle = broadcast_places(named("broadcast", name), places, root_rank, finish, group, waits=True)
    result: list[Array] = synchronize(handle)
    return result[0]


def alltoall(
    array: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, Array]:
    """Send rows to every rank: ``splits[r]`` of them to rank r, or equal shares.

    Returns
    -------
    tuple
        What came, in rank order, and how many rows came from each rank.
    """
    group = set_id(process_set, "Alltoall")
    source = _contiguous(array)
    rows = None if splits is None else [int(count) for count in splits]

    def finish(outcome: Any) -> tuple[Array, Array]:
        return from_buffer(outcome.buffers[0], source.dtype), np.array(outcome.sizes, np.int32)

    handle = alltoall_place(named("alltoall", name), place_of(source), rows, finish, group, waits=True)
    result: tuple[Array, Array] = synchronize(handle)
    return result


def reducescatter(  # noqa: PLR0917 - Horovod's order
    array: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduce, and return this rank's share of the rows; the first ranks get one more where they do not divide."""
    return _scattered([array], named("reducescatter", name), op, (prescale_factor, postscale_factor), process_set)[0]


def grouped_reducescatter(  # noqa: PLR0917 - Horovod's order
    arrays: Sequence[Array],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Reduce several arrays, together or not at all, and return this rank's rows of each."""
    some(arrays, "grouped_reducescatter")
    scales = (prescale_factor, postscale_factor)
    return _scattered(arrays, named("grouped_reducescatter", name), op, scales, process_set)


def _scattered(arrays: Sequence[Array], name: str, op: int, scales: Scales, process_set: ProcessSet) -> list[Array]:
    group = set_id(process_set, "Reducescatter")
    sources = [_contiguous(array) for array in arrays]
    for source in sources if op in SCATTERED else ():
        check_reducible(dtype_of(source), op)
    outputs = [np.empty(share_of(source.shape, process_set), source.dtype) for source in sources]

    def finish(_: Any, _held: list[Array] = sources) -> list[Array]:
        return outputs

    places = [_in_and_out(source, output) for source, output in zip(sources, outputs, strict=True)]
    result: list[Array] = synchronize(reducescatter_places(name, places, op, scales, finish, group, waits=True))
    return result


def share_of(shape: Sequence[int], process_set: ProcessSet) -> tuple[int, ...]:
    """Return the shape of this rank's rows after a reducescatter."""
    if not shape:
        raise ValueError("Reducescatter does not support scalar inputs")
    size, rank = process_set.size(), process_set.rank()
    if size is None or rank is None:
        raise HorovodInternalError(str(NotInitialized()))
    return (shape[0] // size + (rank < shape[0] % size), *shape[1:])


def some(tensors: Sequence[Any], doing: str) -> None:
    """Refuse an empty group."""
    if not tensors:
        raise ValueError(f"{doing} needs at least one tensor.")


def named(kind: str, name: str | None) -> str:
    """Horovod's name on the wire; the core makes up a name from the handle where there is none."""
    return f"{kind}.{name}" if name else ""


def _contiguous(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(np.shape(array))  # NumPy would make a 0-d array 1-d


def _in_and_out(source: Array, output: Array) -> InOut:
    return source.ctypes.data, output.ctypes.data, source.shape, dtype_of(source)


def _out_of_place(arrays: Sequence[Array]) -> tuple[list[InOut], Finish]:
    sources = [_contiguous(array) for array in arrays]
    outputs = [np.empty_like(source) for source in sources]

    def finish(_: Any, _held: list[Array] = sources) -> list[Array]:
        return outputs

    return [_in_and_out(source, output) for source, output in zip(sources, outputs, strict=True)], finish


# Objects


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank; what the others pass as ``obj`` is ignored.

    Ranks must agree on ``name``. Horovod's default, the type of ``obj``, has ranks that pass None wait for ever.
    """
    name = name or "broadcast_object"
    root = _engine().rank == root_rank
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8) if root else np.empty(0, np.uint8)
    length = int(broadcast(np.array([data.size], np.int64), root_rank, f"{name}.sz", process_set)[0])
    received = broadcast(data if root else np.empty(length, np.uint8), root_rank, f"{name}.t", process_set)
    return obj if root else cloudpickle.loads(received.data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return every rank's object, in rank order. Ranks must agree on ``name``; their objects may be of any types."""
    name = name or "allgather_object"
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8)
    ends = np.cumsum(allgather(np.array([data.size], np.int64), f"{name}.sz", process_set))
    everything = allgather(data, f"{name}.t", process_set)
    return [cloudpickle.loads(part.data) for part in np.split(everything, ends[:-1])]
