"""The collectives that return a handle, with Horovod's signatures.

``op_async`` returns a new tensor, ``op_async_`` works in place. Ranks match operations by name; the tensors are kept
alive until ``synchronize`` has returned the result.
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core.ops import Average, Sum, synchronize
from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.core.tensor import reduction_of
from hvd_kernel.torch import dispatch

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


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
    handle = dispatch.fast.allreduce_async(
        tensor, tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    if handle is not None:
        return handle
    op = reduction_of(op, average)
    return dispatch.allreduce_(tensor, name, op, (prescale_factor, postscale_factor), process_set)


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
    if process_set is global_process_set and dispatch.is_plain(tensor):
        options = (average, name, op, prescale_factor, postscale_factor, process_set)
        handle = dispatch.fast.allreduce_async(tensor, torch.empty_like, *options)
        if handle is not None:
            return handle
    op = reduction_of(op, average)
    return dispatch.allreduce(tensor, name, op, (prescale_factor, postscale_factor), process_set)


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
    handle = dispatch.fast.grouped_async(
        tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    if handle is not None:
        return handle
    op = reduction_of(op, average)
    return dispatch.grouped_allreduce_(tensors, name, op, (prescale_factor, postscale_factor), process_set)


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
    if process_set is global_process_set and dispatch.are_plain(tensors):
        options = (average, name, op, prescale_factor, postscale_factor, process_set)
        handle = dispatch.fast.grouped_async(tensors, torch.empty_like, *options)
        if handle is not None:
            return handle
    op = reduction_of(op, average)
    return dispatch.grouped_allreduce(tensors, name, op, (prescale_factor, postscale_factor), process_set)


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
    indices = dispatch.allgather(local.indices().t(), f"{name}.indices", process_set)
    values = dispatch.allgather(local.values(), f"{name}.values", process_set)

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
    return dispatch.allgather(tensor, name, process_set)


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
    return dispatch.grouped_allgather(tensors, name, process_set)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start overwriting the tensor with the root's; return a handle. Parameters and errors as in ``broadcast``.

    Examples
    --------
    >>> hvd.synchronize(hvd.broadcast_async_(torch.tensor([hvd.rank(), 7]), root_rank=0))
    tensor([0, 7])
    """
    return dispatch.broadcast_(tensor, root_rank, name, process_set)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start receiving the root's tensor as a new one; return a handle. Parameters and errors as in ``broadcast``.

    Examples
    --------
    >>> hvd.synchronize(hvd.broadcast_async(torch.tensor([hvd.rank(), 7]), root_rank=0))
    tensor([0, 7])
    """
    return dispatch.broadcast(tensor, root_rank, name, process_set)


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
    return dispatch.alltoall(tensor, splits, name, process_set)


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
    return dispatch.reducescatter(tensor, name, op, (prescale_factor, postscale_factor), process_set)


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
    return dispatch.grouped_reducescatter(tensors, name, op, (prescale_factor, postscale_factor), process_set)
