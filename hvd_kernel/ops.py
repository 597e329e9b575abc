"""Collectives without a framework: on memory, held until the handle completes, and on NumPy arrays.

Words.
  place   (pointer, shape, dtype), see tensor
  handle  the core's number of an enqueued operation; known until it was waited for
  finish  called once with the core's Buffer (allgather) or None when the operation has succeeded; gives the result.
          It is held until then and must itself hold whatever owns the memory, because the core writes there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from hvd_kernel import _session
from hvd_kernel.errors import HorovodInternalError, NotInitialized
from hvd_kernel.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.tensor import Array, Place, check_reducible, dtype_of, from_buffer, place_of

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

Average = 0
Sum = 1

Finish = Callable[[Any], Any]
InOut = tuple[int, int, tuple[int, ...], int]

_live: dict[int, tuple[Engine, Finish]] = {}
_owner: Engine | None = None  # the engine whose handles _live holds


def _engine() -> Engine:
    """Return the engine, and forget the handles of the one before it: their numbers come again."""
    global _owner  # noqa: PLW0603 - one table of handles per process, as there is one engine
    try:
        engine = _session.engine()
    except NotInitialized as error:
        raise HorovodInternalError(str(error)) from None
    if engine is not _owner:
        _live.clear()
        _owner = engine
    return engine


def allreduce_places(name: str, places: Sequence[InOut], op: int, scales: tuple[float, float], finish: Finish) -> int:
    """Enqueue; several places are a group: reduced together or not at all."""
    engine = _engine()
    handle = engine.allreduce(name, places, op, *scales)
    _live[handle] = (engine, finish)
    return handle


def allgather_place(name: str, place: Place, finish: Finish) -> int:
    """Enqueue; ``finish`` gets the Buffer that holds every rank's rows."""
    engine = _engine()
    handle = engine.allgather(name, place)
    _live[handle] = (engine, finish)
    return handle


def broadcast_place(name: str, place: InOut, root_rank: int, finish: Finish) -> int:
    """Enqueue; the root's memory arrives in everyone's output."""
    engine = _engine()
    if not 0 <= root_rank < engine.size:
        raise ValueError(f"broadcast received invalid root rank {root_rank} for provided process set")
    handle = engine.broadcast(name, place, root_rank)
    _live[handle] = (engine, finish)
    return handle


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
        buffer = engine.wait(handle)
    except BaseException:
        if not _in_flight(engine, handle):
            _live.pop(handle, None)
        raise
    _live.pop(handle, None)
    return finish(buffer)


def _in_flight(engine: Engine, handle: int) -> bool:
    """Tell whether the core still uses the handle's memory: an interrupt ended the wait, not the operation."""
    try:
        engine.poll(handle)
    except ValueError:
        return False
    return True


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank has called it."""
    check(process_set)
    engine = _engine()
    handle = engine.barrier("barrier.noname")  # Horovod's: a barrier meets a barrier, whatever came before
    _live[handle] = (engine, lambda _: None)
    synchronize(handle)


# NumPy


def allreduce(
    array: Array,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Return the average or sum of every rank's array."""
    check_reducible(dtype_of(array))
    place, finish = _out_of_place(array)
    handle = allreduce_places(_named("allreduce", name), [place], op, (prescale_factor, postscale_factor), finish)
    result: Array = synchronize(handle)
    return result


def allgather(array: Array, name: str | None = None) -> Array:
    """Return every rank's rows, one after the other; the number of rows may differ."""
    source = _contiguous(array)

    def finish(buffer: Any) -> Array:
        return from_buffer(buffer, source.dtype)

    result: Array = synchronize(allgather_place(_named("allgather", name), place_of(source), finish))
    return result


def broadcast(array: Array, root_rank: int, name: str | None = None) -> Array:
    """Return the root's array on every rank."""
    place, finish = _out_of_place(array)
    result: Array = synchronize(broadcast_place(_named("broadcast", name), place, root_rank, finish))
    return result


def _contiguous(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(np.shape(array))  # NumPy would make a 0-d array 1-d


def _out_of_place(array: Array) -> tuple[InOut, Finish]:
    source = _contiguous(array)
    output = np.empty_like(source)

    def finish(_: Any, _held: Array = source) -> Array:
        return output

    return (source.ctypes.data, output.ctypes.data, source.shape, dtype_of(source)), finish


def _named(kind: str, name: str | None) -> str:
    """Horovod's name on the wire; the core makes up a name from the handle where there is none."""
    return f"{kind}.{name}" if name else ""


# Objects


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank. Ranks must agree on ``name``, or on the type of their ``obj``."""
    check(process_set)
    name = name or type(obj).__name__
    engine = _engine()
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8) if engine.rank == root_rank else np.empty(0, np.uint8)
    length = int(broadcast(np.array([data.size], np.int64), root_rank, f"{name}.sz")[0])
    received = broadcast(data if engine.rank == root_rank else np.empty(length, np.uint8), root_rank, f"{name}.t")
    return obj if engine.rank == root_rank else cloudpickle.loads(received.data)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return every rank's object, in rank order. Ranks must agree on ``name``, or on the type of their ``obj``."""
    name = name or type(obj).__name__
    data = np.frombuffer(cloudpickle.dumps(obj), np.uint8)
    ends = np.cumsum(allgather(np.array([data.size], np.int64), f"{name}.sz"))
    everything = allgather(data, f"{name}.t")
    return [cloudpickle.loads(part.data) for part in np.split(everything, ends[:-1])]
