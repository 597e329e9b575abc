"""Collectives without a framework: on NumPy arrays, and on any Python objects. What waits for them is in handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np

from hvd_kernel.core.handles import (
    Finish,
    InOut,
    Scales,
    allgather_places,
    allreduce_places,
    alltoall_place,
    barrier,
    broadcast_places,
    current_engine,
    join,
    poll,
    reducescatter_places,
    synchronize,
)
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import (
    SCATTERED,
    Adasum,
    Array,
    Average,
    Max,
    Min,
    Product,
    Sum,
    check_reducible,
    dtype_of,
    from_buffer,
    place_of,
)
from hvd_kernel.errors import HorovodInternalError, NotInitialized

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "poll",
    "reducescatter",
    "synchronize",
]


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
    root = current_engine().rank == root_rank
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
