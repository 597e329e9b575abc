"""Collectives without a framework: on NumPy arrays, and on any Python objects. ``handles`` waits for them.

``memory`` is where arrays are, by default the host's; ``hvd_kernel.numpy`` passes that of a GPU.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_kernel.core import collectives
from hvd_kernel.core.collectives import HOST, Memory, OutputMemory
from hvd_kernel.core.handles import Scales, barrier, current_engine, join, poll, synchronize
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import Adasum, Array, Average, Max, Min, Product, Sum
from hvd_kernel.protocol import main_objects

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

SPLITS_ARE_A_VECTOR = "alltoall expects a 1D splits tensor: the number of rows for each rank."
SPLITS_ARE_INTEGERS = "alltoall expects splits to contain integers, not {dtype}: how many rows each rank gets."
SPLITS_ARE_INT32 = "alltoall expects splits to contain 32-bit integer elements, not {dtype}: use dtype='int32'."


def allreduce(  # noqa: PLR0917 - Horovod's order
    array: Array,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    memory: OutputMemory = HOST,
) -> Array:
    """Return the average, sum ... of every rank's array.

    Parameters
    ----------
    array
        Also empty or 0-dimensional; of the same shape and dtype on every rank. Average: integers, floats and complex;
        Sum and Product: bool too; Min and Max: all but complex; Adasum: floats. The average of integers is exact and
        rounded toward zero; their sum and product wrap around, unless a postscale follows the sum.
    name
        By which ranks match operations; without it, by how many calls each rank has made, failed ones too.
    op
        Average, Sum, Adasum, Min, Max or Product.
    prescale_factor, postscale_factor
        What each rank's array is multiplied by before the reduction, and the result after it.
    process_set
        The ranks that take part; this rank is one of them.

    Returns
    -------
    Array
        A new one of the same shape and dtype; the same on every rank.

    Raises
    ------
    ValueError
        On this rank alone, before anything is sent: the dtype has no such reduction, the name is in flight already, or
        this rank is not a member of the set.
    HorovodInternalError
        On every rank: shapes, dtypes or reductions differ (Mismatch), or a rank has failed (RankFailed, RankDied); on
        this one: before ``init``.

    Examples
    --------
    >>> hvd.allreduce(np.array([1.0, 2.0]), name="loss")  # every rank has the same
    array([1., 2.])

    On two ranks:

    >>> hvd.allreduce(np.array([1, 2]) * (hvd.rank() + 1), op=hvd.Sum)
    array([3, 6])
    """
    scales = (prescale_factor, postscale_factor)
    return _reduced([array], wire_name("allreduce", name), op, scales, process_set, memory=memory)[0]


def grouped_allreduce(  # noqa: PLR0917 - Horovod's order
    arrays: Sequence[Array],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    memory: OutputMemory = HOST,
) -> list[Array]:
    """Return the reductions of several arrays, reduced together or not at all.

    Parameters and errors as in ``allreduce``.

    Parameters
    ----------
    arrays
        The same number on every rank, in the same order; they may differ in shape and dtype. An empty sequence is a
        ValueError.

    Examples
    --------
    >>> hvd.grouped_allreduce([np.ones(1), np.zeros(2, np.int64)])
    [array([1.]), array([0, 0])]
    """
    some(arrays, "grouped_allreduce")
    scales = (prescale_factor, postscale_factor)
    return _reduced(arrays, wire_name("grouped_allreduce", name), op, scales, process_set, memory=memory)


def _reduced(
    arrays: Sequence[Array], name: str, op: int, scales: Scales, process_set: ProcessSet, *, memory: OutputMemory
) -> list[Array]:
    group = set_id(process_set, "Allreduce")
    result: list[Array] = synchronize(collectives.allreduce(memory, arrays, name, op, scales, group=group, waits=True))
    return result


def allgather(
    array: Array, name: str | None = None, process_set: ProcessSet = global_process_set, *, memory: Memory = HOST
) -> Array:
    """Return the concatenated rows of all ranks; the number of rows may differ between ranks, and be 0.

    Parameters
    ----------
    array
        Of 1 dimension or more and any dtype; dtype and dimensions but the first are the same on every rank.
    name, process_set
        As in ``allreduce``. In a set rows are in the order of its members.

    Returns
    -------
    Array
        Of shape (all ranks' rows, ...).

    Raises
    ------
    ValueError
        On this rank alone: 0-dimensional, or of a dtype that is not known to the core; else as in ``allreduce``.
    HorovodInternalError
        As in ``allreduce``.

    Examples
    --------
    >>> hvd.allgather(np.zeros((1, 3))).shape == (hvd.size(), 3)
    True

    On two ranks:

    >>> hvd.allgather(np.full(hvd.rank() + 1, hvd.rank()))
    array([0, 1, 1])
    """
    return _gathered([array], wire_name("allgather", name), process_set, memory)[0]


def grouped_allgather(
    arrays: Sequence[Array],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    memory: Memory = HOST,
) -> list[Array]:
    """Return every rank's rows of several arrays, gathered together or not at all.

    Parameters and errors as in ``allgather``.

    Parameters
    ----------
    arrays
        The same number on every rank, in the same order. An empty sequence is a ValueError.

    Examples
    --------
    >>> rows, more = hvd.grouped_allgather([np.zeros((1, 3)), np.zeros(2)])
    >>> rows.shape == (hvd.size(), 3), more.shape == (2 * hvd.size(),)
    (True, True)
    """
    some(arrays, "grouped_allgather")
    return _gathered(arrays, wire_name("grouped_allgather", name), process_set, memory)


def _gathered(arrays: Sequence[Array], name: str, process_set: ProcessSet, memory: Memory) -> list[Array]:
    group = set_id(process_set, "Allgather")
    result: list[Array] = synchronize(collectives.allgather(memory, arrays, name, group=group, waits=True))
    return result


def broadcast(
    array: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    memory: OutputMemory = HOST,
) -> Array:
    """Return the root's array on every rank, as a new one.

    Parameters
    ----------
    array
        Of any shape and dtype, the same on every rank; on ranks other than the root only its shape is used.
    root_rank
        The rank whose array is sent: a global rank, also in a process set.
    name, process_set
        As in ``allreduce``.

    Raises
    ------
    ValueError
        On this rank alone: there is no such root in the set, or the dtype is not known; else as in ``allreduce``.
    HorovodInternalError
        On every rank: also when they name different roots; else as in ``allreduce``.

    Examples
    --------
    >>> hvd.broadcast(np.array([hvd.rank(), 7]), root_rank=0)
    array([0, 7])
    """
    group, wire = set_id(process_set, "Broadcast"), wire_name("broadcast", name)
    result: list[Array] = synchronize(collectives.broadcast(memory, [array], wire, root_rank, group=group, waits=True))
    return result[0]


def alltoall(
    array: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    memory: Memory = HOST,
) -> tuple[Array, Array]:
    """Send rows to every rank: ``splits[r]`` of them to rank r, or equal shares.

    Parameters
    ----------
    array
        Of 1 dimension or more and any dtype; dtype and dimensions but the first are the same on every rank.
    splits
        Number of rows for each rank, in rank order. Rows beyond their sum are not sent. None: equal shares; the number
        of rows must be divisible.
    name, process_set
        As in ``allreduce``. In a set ranks are its members.

    Returns
    -------
    tuple
        The received rows, in rank order, and the number of rows received from each rank: of shape (ranks,), int32.

    Raises
    ------
    ValueError
        On this rank alone: the splits are not one integer for each rank, or their sum exceeds the number of rows; the
        rows cannot be divided into equal shares; otherwise as in ``allgather``.
    HorovodInternalError
        As in ``allreduce``.

    Examples
    --------
    >>> rows, counts = hvd.alltoall(np.zeros((2 * hvd.size(), 3)))
    >>> counts.tolist() == [2] * hvd.size()
    True

    On two ranks:

    >>> rows, counts = hvd.alltoall(np.array([0, 1, 2]) + 10 * hvd.rank(), splits=[1, 2])
    >>> rows.tolist() == [[0, 10], [1, 2, 11, 12]][hvd.rank()]
    True
    """
    group, wire = set_id(process_set, "Alltoall"), wire_name("alltoall", name)
    rows = None if splits is None else row_counts(splits)
    result: tuple[Array, Array] = synchronize(
        collectives.alltoall(memory, array, wire, rows, group=group, counts=_counts, waits=True)
    )
    return result


def _counts(sizes: Sequence[int]) -> Array:
    return np.array(sizes, np.int32)


def row_counts(splits: Any) -> list[int]:
    """Return the splits of an alltoall as a list.

    Raises
    ------
    ValueError
        They are not a vector of integers: floating-point numbers are not rounded.
    """
    counts = np.asarray(splits)
    if counts.ndim != 1:
        raise ValueError(SPLITS_ARE_A_VECTOR)
    if counts.size and counts.dtype.kind not in "iu":
        raise ValueError(SPLITS_ARE_INTEGERS.format(dtype=counts.dtype))
    return [int(count) for count in counts]


def reducescatter(  # noqa: PLR0917 - Horovod's order
    array: Array,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    memory: OutputMemory = HOST,
) -> Array:
    """Reduce, and return this rank's share of the rows; if they are not divisible, the first ranks get one more.

    Parameters
    ----------
    array
        As in ``allreduce``, of at least one dimension.
    op
        Average or Sum.
    name, process_set, prescale_factor, postscale_factor
        As in ``allreduce``. In a set shares are in the order of its members.

    Raises
    ------
    ValueError
        On this rank alone: the array is 0-dimensional; else as in ``allreduce``.
    HorovodInternalError
        On every rank: another ``op``; else as in ``allreduce``.

    Examples
    --------
    >>> hvd.reducescatter(np.ones((hvd.size(), 2)))
    array([[1., 1.]])

    On two ranks:

    >>> hvd.reducescatter(np.array([1, 2, 3]), op=hvd.Sum).tolist() == [[2, 4], [6]][hvd.rank()]
    True
    """
    scales = (prescale_factor, postscale_factor)
    return _scattered([array], wire_name("reducescatter", name), op, scales, process_set, memory=memory)[0]


def grouped_reducescatter(  # noqa: PLR0917 - Horovod's order
    arrays: Sequence[Array],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    memory: OutputMemory = HOST,
) -> list[Array]:
    """Reduce several arrays, together or not at all, and return this rank's rows of each.

    Parameters and errors as in ``reducescatter``.

    Parameters
    ----------
    arrays
        The same number on every rank, in the same order. An empty sequence is a ValueError.

    Examples
    --------
    >>> hvd.grouped_reducescatter([np.ones((hvd.size(), 2)), np.zeros(hvd.size())])
    [array([[1., 1.]]), array([0.])]
    """
    some(arrays, "grouped_reducescatter")
    scales = (prescale_factor, postscale_factor)
    return _scattered(arrays, wire_name("grouped_reducescatter", name), op, scales, process_set, memory=memory)


def _scattered(
    arrays: Sequence[Array], name: str, op: int, scales: Scales, process_set: ProcessSet, *, memory: OutputMemory
) -> list[Array]:
    group = set_id(process_set, "Reducescatter")
    result: list[Array] = synchronize(
        collectives.reducescatter(memory, arrays, name, op, scales, group=group, waits=True)
    )
    return result


def some(tensors: Sequence[Any], doing: str) -> None:
    """Raise ValueError for an empty group."""
    if not tensors:
        raise ValueError(f"{doing} needs at least one tensor.")


def wire_name(kind: str, name: str | None) -> str:
    """Return Horovod's name on the wire; without a name the core derives one from the handle."""
    return f"{kind}.{name}" if name else ""


# Objects


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank; ``obj`` of the other ranks is ignored.

    Parameters
    ----------
    obj
        Any object that cloudpickle can pickle, also functions and classes of a notebook or script. A rank that has the
        same definition of them uses its own, so that ``isinstance`` holds; another rank gets a copy. The root gets
        ``obj`` itself.
    root_rank
        The rank whose object is sent: a global rank, also in a process set.
    name
        Name by which ranks match, the same for all types of ``obj`` by default; Horovod's default, the type of ``obj``,
        would not match None on other ranks.
    process_set
        The ranks that take part; this rank is one of them.

    Raises
    ------
    ValueError
        On this rank alone: there is no such root, or it is not a member of the set.
    HorovodInternalError
        A rank has failed, or this one is not initialised.

    Examples
    --------
    >>> hvd.broadcast_object({"lr": 0.1} if hvd.rank() == 0 else None)
    {'lr': 0.1}
    """
    name = name or "broadcast_object"
    root = current_engine().rank == root_rank
    data = np.frombuffer(main_objects.dumps(obj), np.uint8) if root else np.empty(0, np.uint8)
    length = int(broadcast(np.array([data.size], np.int64), root_rank, f"{name}.sz", process_set)[0])
    received = broadcast(data if root else np.empty(length, np.uint8), root_rank, f"{name}.t", process_set)
    return obj if root else pickle.loads(received.data)  # noqa: S301 - from a rank of this job


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return every rank's object, in rank order.

    Parameters
    ----------
    obj
        Any object that cloudpickle can pickle; the types may differ between ranks.
    name, process_set
        As in ``broadcast_object``.

    Raises
    ------
    ValueError
        On this rank alone: it is not a member of the set.
    HorovodInternalError
        A rank has failed, or this one is not initialised.

    Examples
    --------
    >>> hvd.allgather_object(("rank", hvd.rank()))[0]
    ('rank', 0)
    """
    name = name or "allgather_object"
    data = np.frombuffer(main_objects.dumps(obj), np.uint8)
    ends = np.cumsum(allgather(np.array([data.size], np.int64), f"{name}.sz", process_set))
    everything = allgather(data, f"{name}.t", process_set)
    return [pickle.loads(part.data) for part in np.split(everything, ends[:-1])]  # noqa: S301 - from ranks of this job
