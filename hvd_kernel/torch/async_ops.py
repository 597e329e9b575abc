"""The collectives that return a handle: Horovod's forms, and the functions below them that all forms share.

``op_async`` returns a new tensor, ``op_async_`` works in place. Ranks match operations by name; the tensors are kept
alive until ``synchronize`` has returned the result. Below them ``op`` and ``op_`` pass tensors to the core. In place,
or for one tensor that is reduced or broadcast, they call it directly, in 5 us less; the others use core/collectives.

Terms.
  buffer    see memory; on a device ``resuming_stream`` orders an operation in place with torch's work
  group     several tensors that are one operation, all of them or none; its result is a tuple
  waits     see handles: the caller waits next
  fast      an allreduce of plain CPU tensors in one call of the core
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hvd_kernel.core import collectives, handles, ops
from hvd_kernel.core.handles import FastCalls, InOut, Scales
from hvd_kernel.core.ops import Average, Sum, synchronize, wire_name
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import reduction_of
from hvd_kernel.torch.memory import (
    MEMORY,
    NUMBERS,
    Finish,
    Table,
    check_writable,
    number_of,
    on_device_of,
    reduced_by,
    resuming_stream,
    stage,
    unstage,
    with_device,
)

Tensors = tuple[Tensor, ...]

_FIRST = itemgetter(0)  # the result of an operation on one tensor

_exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
fast = FastCalls(Tensor, Parameter, _exchange, readable=_exchange is not None)  # torch 2.10 and newer
_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def is_plain(tensor: Any) -> bool:
    """Return whether autograd does not record an operation on the tensor, so that ``fast`` may run it."""
    return type(tensor) is Tensor and tensor.is_cpu and not (tensor.requires_grad and torch.is_grad_enabled())


def are_plain(tensors: Any) -> bool:
    """Return whether all tensors of a list or tuple are plain; False for iterators, which are not read."""
    return type(tensors) in {list, tuple} and all(map(is_plain, tensors))


def _in_place(tensor: Tensor, table: Table) -> tuple[InOut, Tensor]:
    number = number_of(tensor, table)
    buffer = stage(tensor)
    if buffer is not tensor:
        check_writable(tensor)
    pointer = buffer.data_ptr()
    place = (pointer, pointer, buffer.shape, number)
    return (place if buffer.is_cpu else with_device(place, buffer)), buffer


def _into_new(tensor: Tensor, table: Table) -> tuple[InOut, Finish]:
    """Return the place of an operation into a new tensor, and the function that returns this tensor."""
    number = number_of(tensor, table)
    buffer = stage(tensor)
    output = torch.empty_like(buffer)
    place = (buffer.data_ptr(), output.data_ptr(), buffer.shape, number)

    def finish(_: Any, _held: Tensor = buffer) -> Tensor:
        return on_device_of(tensor, output)

    return (place, finish) if buffer.is_cpu else (with_device(place, buffer), resuming_stream(finish, (buffer, output)))


def allreduce_(
    tensor: Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start an allreduce in place."""
    group = 0 if process_set is global_process_set else set_id(process_set, "Allreduce")
    place, buffer = _in_place(tensor, reduced_by(op))
    wire = f"allreduce.{name}" if name else ""

    def finish(_: Any) -> Tensor:
        return unstage(tensor, buffer)

    ordered = finish if buffer.is_cpu else resuming_stream(finish, (buffer,))
    return handles.allreduce_places(wire, (place,), op, scales, ordered, group, waits)


def allreduce(
    tensor: Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start an allreduce into a new tensor."""
    group = set_id(process_set, "Allreduce")
    place, finish = _into_new(tensor, reduced_by(op))
    return handles.allreduce_places(wire_name("allreduce", name), (place,), op, scales, finish, group, waits)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    scales: Scales,
    process_set: ProcessSet,
    *,
    waits: bool = False,
) -> int:
    """Start a grouped allreduce in place."""
    group = set_id(process_set, "Allreduce")
    kept = _group(tensors, "grouped_allreduce")
    pairs = [_in_place(tensor, reduced_by(op)) for tensor in kept]
    buffers = [buffer for _, buffer in pairs]

    def finish(_: Any) -> Tensors:
        return tuple(unstage(tensor, buffer) for tensor, buffer in zip(kept, buffers, strict=True))

    wire, places = wire_name("grouped_allreduce", name), [place for place, _ in pairs]
    return handles.allreduce_places(wire, places, op, scales, ordered(finish, buffers), group, waits)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    scales: Scales,
    process_set: ProcessSet,
    *,
    waits: bool = False,
) -> int:
    """Start a grouped allreduce into new tensors."""
    group, wire = set_id(process_set, "Allreduce"), wire_name("grouped_allreduce", name)
    kept = _group(tensors, "grouped_allreduce")
    return collectives.allreduce(MEMORY, kept, wire, op, scales, group=group, form=tuple, waits=waits)


def allgather(tensor: Tensor, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Start an allgather: a concatenation of rows."""
    group, wire = set_id(process_set, "Allgather"), wire_name("allgather", name)
    _check_rows(tensor)
    return collectives.allgather(MEMORY, (tensor,), wire, group=group, form=_FIRST, waits=waits)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start a grouped allgather: a concatenation of rows of each tensor."""
    group, wire = set_id(process_set, "Allgather"), wire_name("grouped_allgather", name)
    kept = _group(tensors, "grouped_allgather")
    for tensor in kept:
        _check_rows(tensor)
    return collectives.allgather(MEMORY, kept, wire, group=group, form=tuple, waits=waits)


def _check_rows(tensor: Tensor) -> None:
    number_of(tensor, NUMBERS)  # whether it is a tensor
    if not tensor.dim():
        raise IndexError("tuple index out of range: allgather concatenates rows, a 0-dimensional tensor has none.")


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start a broadcast in place."""
    group = set_id(process_set, "Broadcast")
    place, buffer = _in_place(tensor, NUMBERS)
    wire = wire_name("broadcast", name)

    def finish(_: Any) -> Tensor:
        return unstage(tensor, buffer)

    return handles.broadcast_places(wire, (place,), root_rank, ordered(finish, (buffer,)), group, waits)


def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Start a broadcast into a new tensor."""
    group = set_id(process_set, "Broadcast")
    place, finish = _into_new(tensor, NUMBERS)
    return handles.broadcast_places(wire_name("broadcast", name), (place,), root_rank, finish, group, waits)


def alltoall(tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Start an alltoall; its result is the received rows, and the number of rows from each rank (device of splits)."""
    group, wire = set_id(process_set, "Alltoall"), wire_name("alltoall", name)
    number_of(tensor, NUMBERS)  # whether it is a tensor
    if not tensor.dim():
        raise ValueError("Alltoall does not support scalar inputs")
    rows, device = _splits(splits)
    counts = partial(torch.tensor, dtype=torch.int32, device=device)
    return collectives.alltoall(MEMORY, tensor, wire, rows, group=group, counts=counts, waits=waits)


def _splits(splits: Any) -> tuple[list[int] | None, torch.device]:
    if splits is None:
        return None, torch.device("cpu")
    if not isinstance(splits, Tensor):
        splits = torch.tensor(splits, dtype=torch.int32)
    if splits.dim() != 1:
        raise ValueError("alltoall expects a 1D splits tensor")
    if splits.dtype != torch.int32:
        raise ValueError("alltoall expects splits to contain 32-bit integer elements.")
    return splits.tolist(), splits.device


def reducescatter(
    tensor: Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start a reducescatter: a reduction of which each rank receives its share of the rows."""
    group, wire = set_id(process_set, "Reducescatter"), wire_name("reducescatter", name)
    return collectives.reducescatter(MEMORY, (tensor,), wire, op, scales, group=group, form=_FIRST, waits=waits)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    scales: Scales,
    process_set: ProcessSet,
    *,
    waits: bool = False,
) -> int:
    """Start a grouped reducescatter."""
    group, wire = set_id(process_set, "Reducescatter"), wire_name("grouped_reducescatter", name)
    kept = _group(tensors, "grouped_reducescatter")
    return collectives.reducescatter(MEMORY, kept, wire, op, scales, group=group, form=tuple, waits=waits)


def ordered(finish: Finish, touched: Sequence[Tensor]) -> Finish:
    """Return a finish function that orders the caller's stream after an operation on a device."""
    return finish if touched[0].is_cpu else resuming_stream(finish, touched)


def _group(tensors: Sequence[Tensor], doing: str) -> Tensors:
    kept = tuple(tensors)
    ops.some(kept, doing)
    return kept


# Horovod's forms.


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing over all ranks, in place; return a handle.

    Parameters and errors as in ``allreduce``; errors on every rank are raised by ``synchronize``. Do not read or write
    the tensor before ``synchronize`` returns.

    Returns
    -------
    int
        A handle for ``poll`` and ``synchronize``, which returns the tensor.

    Examples
    --------
    >>> tensor = torch.full((2,), 4.0)
    >>> handle = hvd.allreduce_async_(tensor, name="in place")
    >>> hvd.synchronize(handle) is tensor
    True
    """
    handle = fast.allreduce_async(tensor, tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    if handle is not None:
        return handle
    op = reduction_of(op, average)
    return allreduce_(tensor, name, op, (prescale_factor, postscale_factor), process_set)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing over all ranks, into a new tensor; return a handle.

    Parameters and errors as in ``allreduce_async_``.

    Examples
    --------
    >>> hvd.synchronize(hvd.allreduce_async(torch.tensor([1.0, 2.0]), op=hvd.Min))
    tensor([1., 2.])
    """
    if process_set is global_process_set and is_plain(tensor):
        options = (average, name, op, prescale_factor, postscale_factor, process_set)
        handle = fast.allreduce_async(tensor, torch.empty_like, *options)
        if handle is not None:
            return handle
    op = reduction_of(op, average)
    return allreduce(tensor, name, op, (prescale_factor, postscale_factor), process_set)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing several tensors in place, all of them or none; ``synchronize`` returns a tuple of them.

    Parameters and errors as in ``grouped_allreduce``.

    Examples
    --------
    >>> hvd.synchronize(hvd.grouped_allreduce_async_([torch.ones(1), torch.zeros(2)]))
    (tensor([1.]), tensor([0., 0.]))
    """
    handle = fast.grouped_async(tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    if handle is not None:
        return handle
    op = reduction_of(op, average)
    return grouped_allreduce_(tensors, name, op, (prescale_factor, postscale_factor), process_set)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing several tensors into new ones, all of them or none; ``synchronize`` returns a tuple.

    Parameters and errors as in ``grouped_allreduce``.

    Examples
    --------
    >>> hvd.synchronize(hvd.grouped_allreduce_async([torch.ones(1), torch.zeros(2)]))
    (tensor([1.]), tensor([0., 0.]))
    """
    if process_set is global_process_set and are_plain(tensors):
        options = (average, name, op, prescale_factor, postscale_factor, process_set)
        handle = fast.grouped_async(tensors, torch.empty_like, *options)
        if handle is not None:
            return handle
    op = reduction_of(op, average)
    return grouped_allreduce(tensors, name, op, (prescale_factor, postscale_factor), process_set)


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start summing (or averaging) sparse tensors; return a function that waits for the sum, a sparse tensor.

    Parameters
    ----------
    tensor
        A sparse COO tensor of a dtype that ``allgather`` supports, of the same shape on every rank; its indices may
        differ.
    name
        Name by which ranks match the two gathers, of indices and of values.
    op
        Average, of all ranks, or Sum.
    process_set
        As in ``allreduce``.

    Returns
    -------
    Callable
        A function without arguments that returns the sparse tensor, coalesced.

    Raises
    ------
    ValueError
        On this rank alone: another ``op``, or a dense tensor.
    HorovodInternalError
        As in ``allreduce``.

    Examples
    --------
    >>> rows = torch.tensor([[0.0, 0.0], [2.0, 4.0], [0.0, 0.0]]).to_sparse(1)
    >>> wait = hvd.sparse_allreduce_async(rows, "embedding.grad", hvd.Average)
    >>> wait().to_dense()
    tensor([[0., 0.],
            [2., 4.],
            [0., 0.]])
    """
    if op not in {Average, Sum}:
        raise ValueError(f"sparse_allreduce_async with op={op} is not available: use Average or Sum.")
    if not tensor.is_sparse:
        remedy = "use its to_sparse_coo()." if tensor.layout in _COMPRESSED else "use allreduce."
        raise ValueError(f"sparse_allreduce_async needs a sparse tensor, {name!r} is {tensor.layout}: {remedy}")
    local = tensor.coalesce()
    indices = allgather(local.indices().t(), f"{name}.indices", process_set)
    values = allgather(local.values(), f"{name}.values", process_set)

    def wait() -> Tensor:
        rows: Tensor = synchronize(values)
        row_indices: Tensor = synchronize(indices)
        is_integer_mean = op == Average and not (rows.is_floating_point() or rows.is_complex())
        elements = rows.double() if is_integer_mean else rows  # a sum of integers may exceed their type
        total = torch.sparse_coo_tensor(row_indices.t(), elements, local.shape, check_invariants=False).coalesce()
        if op != Average:
            return total
        mean = total / (process_set.size() or 1)
        return mean.to(torch.get_default_dtype()) if is_integer_mean else mean  # as torch divides integers

    return wait


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start concatenating the rows of all ranks; the number of rows may differ. Return a handle.

    Parameters and errors as in ``allgather``.

    Examples
    --------
    >>> len(hvd.synchronize(hvd.allgather_async(torch.zeros(1, 3)))) == hvd.size()
    True
    """
    return allgather(tensor, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start gathering several tensors, all of them or none; ``synchronize`` returns a tuple.

    Parameters and errors as in ``grouped_allgather``.

    Examples
    --------
    >>> rows, more = hvd.synchronize(hvd.grouped_allgather_async([torch.zeros(1, 3), torch.zeros(2)]))
    >>> len(rows) == hvd.size(), len(more) == 2 * hvd.size()
    (True, True)
    """
    return grouped_allgather(tensors, name, process_set)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start overwriting the tensor with the root's; return a handle. Parameters and errors as in ``broadcast``.

    Examples
    --------
    >>> hvd.synchronize(hvd.broadcast_async_(torch.tensor([hvd.rank(), 7]), root_rank=0))
    tensor([0, 7])
    """
    return broadcast_(tensor, root_rank, name, process_set)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start receiving the root's tensor as a new one; return a handle. Parameters and errors as in ``broadcast``.

    Examples
    --------
    >>> hvd.synchronize(hvd.broadcast_async(torch.tensor([hvd.rank(), 7]), root_rank=0))
    tensor([0, 7])
    """
    return broadcast(tensor, root_rank, name, process_set)


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start sending rows to every rank; ``synchronize`` returns the received rows, and their numbers by rank.

    The result is a pair also without ``splits``. Parameters and errors as in ``alltoall``.

    Examples
    --------
    >>> rows, counts = hvd.synchronize(hvd.alltoall_async(torch.zeros(hvd.size(), 3)))
    >>> counts.tolist() == [1] * hvd.size()
    True
    """
    return alltoall(tensor, splits, name, process_set)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducing, and receiving this rank's share of the rows; return a handle.

    Parameters and errors as in ``reducescatter``.

    Examples
    --------
    >>> hvd.synchronize(hvd.reducescatter_async(torch.ones(hvd.size(), 2)))
    tensor([[1., 1.]])
    """
    return reducescatter(tensor, name, op, (prescale_factor, postscale_factor), process_set)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducing several tensors, all of them or none; ``synchronize`` returns a tuple of this rank's rows.

    Parameters and errors as in ``grouped_reducescatter``.

    Examples
    --------
    >>> hvd.synchronize(hvd.grouped_reducescatter_async([torch.ones(hvd.size(), 2), torch.zeros(hvd.size())]))
    (tensor([[1., 1.]]), tensor([0.]))
    """
    return grouped_reducescatter(tensors, name, op, (prescale_factor, postscale_factor), process_set)
