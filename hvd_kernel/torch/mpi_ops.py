"""Collectives on torch tensors, with Horovod's signatures, under Horovod's file name.

The forms of an operation: ``op`` returns a new tensor and is differentiable, ``op_`` works in place, ``op_async`` and
``op_async_`` return a handle for ``poll`` and ``synchronize``. Ranks match operations by name. The derivatives are
defined in gradients.
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core import basics, build_info, call_stack
from hvd_kernel.core.basics import *  # noqa: F403 - exactly its __all__
from hvd_kernel.core.build_info import *  # noqa: F403
from hvd_kernel.core.ops import Average, barrier, join, poll, synchronize
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set  # noqa: F401 - names of Horovod's module too
from hvd_kernel.core.tensor import reduction_of
from hvd_kernel.torch import async_ops, gradients
from hvd_kernel.torch.async_ops import (
    allgather_async,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    reducescatter_async,
    sparse_allreduce_async,
)
from hvd_kernel.torch.compression import Compression, Compressor
from hvd_kernel.torch.gradients import (  # noqa: F401 - names of Horovod's module too
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
)

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]

call_stack.register_core_caller(__name__)  # by async_ops.fast
__all__ += basics.__all__
__all__ += build_info.__all__

handle_average_backwards_compatibility = reduction_of


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the average (or ``op=Sum``, Min, Max, Product, Adasum) over all ranks. Differentiable.

    Parameters
    ----------
    tensor
        A dense tensor, also empty or 0-dimensional; of the same shape and dtype on every rank. Average: integers
        (exact, rounded toward zero), floats and complex; Sum and Product: bool too; Min and Max: all except complex;
        Adasum: floats.
    average
        Horovod's old form, with a DeprecationWarning: True is ``op=Average``, False is ``op=Sum``.
    name
        Name by which ranks match operations; by default the number of the call on each rank, including failed calls.
    compression
        Type in which the tensor is sent: ``Compression.none``, ``fp16`` or ``bf16``.
    op
        The reduction; None is Average.
    prescale_factor, postscale_factor
        Factors of each rank's tensor before the reduction, and of the result after it.
    process_set
        The ranks that take part, including this rank.

    Returns
    -------
    Tensor
        A new tensor of the same shape, dtype and device; with the same values on every rank.

    Raises
    ------
    ValueError
        On this rank alone, before anything is sent: the dtype has no such reduction, ``average`` and ``op`` are both
        given, the name is in flight already, or this rank is not a member of the set.
    HorovodInternalError
        On every rank: shapes, dtypes or reductions differ (Mismatch), or a rank has failed (RankFailed, RankDied); on
        this rank: before ``init``.

    Examples
    --------
    >>> hvd.allreduce(torch.tensor([1.0, 2.0]), name="loss")  # every rank has the same
    tensor([1., 2.])

    On two ranks:

    >>> hvd.allreduce(torch.tensor([1, 2]) * (hvd.rank() + 1), op=hvd.Sum)
    tensor([3, 6])
    """
    if compression is Compression.none and process_set is global_process_set and async_ops.is_plain(tensor):
        options = (average, name, op, prescale_factor, postscale_factor, process_set)
        output: Tensor | None = async_ops.fast.allreduce(tensor, torch.empty_like, *options)
        if output is not None:
            return output
    small, ctx = compression.compress(tensor)
    reduction = reduction_of(op, average)
    options = (None, name, reduction, prescale_factor, postscale_factor, process_set)
    result: Tensor = compression.decompress(gradients.apply(gradients.HorovodAllreduce, small, *options), ctx)
    return result


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce over all ranks, in place; return the tensor. Parameters and errors as in ``allreduce``.

    Examples
    --------
    >>> tensor = torch.full((2,), 4.0)
    >>> hvd.allreduce_(tensor, op=hvd.Max) is tensor
    True
    """
    done: Tensor | None = async_ops.fast.allreduce(
        tensor, tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    if done is not None:
        return done
    op = reduction_of(op, average)
    handle = async_ops.allreduce_(tensor, name, op, (prescale_factor, postscale_factor), process_set, waits=True)
    result: Tensor = synchronize(handle)
    return result


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce several tensors, all of them or none, and return the results. Differentiable.

    Parameters and errors as in ``allreduce``.

    Parameters
    ----------
    tensors
        The same number on every rank, in the same order; shapes and dtypes may differ. An empty group is a ValueError.

    Examples
    --------
    >>> hvd.grouped_allreduce([torch.ones(1), torch.zeros(2, dtype=torch.int64)])
    [tensor([1.]), tensor([0, 0])]
    """
    if compression is Compression.none and process_set is global_process_set and async_ops.are_plain(tensors):
        options = (average, name, op, prescale_factor, postscale_factor, process_set)
        outputs: tuple[Tensor, ...] | None = async_ops.fast.grouped(tensors, torch.empty_like, *options)
        if outputs is not None:
            return list(outputs)
    pairs = [compression.compress(tensor) for tensor in tensors]
    reduction = reduction_of(op, average)
    arguments = (None, name, reduction, prescale_factor, postscale_factor, process_set)
    results = gradients.apply(gradients.HorovodGroupedAllreduce, *arguments, *(small for small, _ in pairs))
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduce several tensors in place, all of them or none; return them.

    Parameters and errors as in ``grouped_allreduce``.

    Examples
    --------
    >>> pair = [torch.ones(1), torch.zeros(2)]
    >>> [out is tensor for out, tensor in zip(hvd.grouped_allreduce_(pair), pair)]
    [True, True]
    """
    done: tuple[Tensor, ...] | None = async_ops.fast.grouped(
        tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    if done is not None:
        return list(done)
    op = reduction_of(op, average)
    scales = (prescale_factor, postscale_factor)
    return list(synchronize(async_ops.grouped_allreduce_(tensors, name, op, scales, process_set, waits=True)))


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Return the rows of all ranks, concatenated; the number of rows may differ, and be 0. Differentiable.

    Parameters
    ----------
    tensor
        A tensor of 1 or more dimensions and any dtype; dtype and all dimensions except the first must be the same on
        every rank.
    name, process_set
        As in ``allreduce``. In a process set rows are in the order of its members.

    Returns
    -------
    Tensor
        A tensor of shape (total rows, ...), on the tensor's device.

    Raises
    ------
    IndexError
        The tensor is 0-dimensional.
    ValueError
        The core does not support the dtype, the name is in flight already, or this rank is not a member of the set.
    HorovodInternalError
        As in ``allreduce``.

    Examples
    --------
    >>> hvd.allgather(torch.zeros(1, 3)).shape == (hvd.size(), 3)
    True

    On two ranks:

    >>> hvd.allgather(torch.full((hvd.rank() + 1,), hvd.rank()))
    tensor([0, 1, 1])
    """
    result: Tensor = gradients.apply(gradients.HorovodAllgather, tensor, name, process_set)
    return result


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Return the rows of all ranks of several tensors, gathered all or none. Differentiable.

    Parameters and errors as in ``allgather``.

    Parameters
    ----------
    tensors
        The same number on every rank, in the same order. An empty group is a ValueError.

    Examples
    --------
    >>> rows, more = hvd.grouped_allgather([torch.zeros(1, 3), torch.zeros(2)])
    >>> rows.shape == (hvd.size(), 3), more.shape == (2 * hvd.size(),)
    (True, True)
    """
    return list(gradients.apply(gradients.HorovodGroupedAllgather, name, process_set, *tensors))


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return the root's tensor on every rank, as a new tensor on the device of the rank's own. Differentiable.

    Parameters
    ----------
    tensor
        A tensor of any shape and dtype, the same on every rank; of ranks other than the root only these are used.
    root_rank
        The rank whose tensor is sent: a global rank, also in a process set.
    name, process_set
        As in ``allreduce``.

    Raises
    ------
    ValueError
        On this rank alone: the root is not in the set, the core does not support the dtype, the name is in flight
        already, or this rank is not a member of the set.
    HorovodInternalError
        On every rank: the ranks name different roots; otherwise as in ``allreduce``.

    Examples
    --------
    >>> hvd.broadcast(torch.tensor([hvd.rank(), 7]), root_rank=0)
    tensor([0, 7])
    """
    result: Tensor = gradients.apply(gradients.HorovodBroadcast, tensor, root_rank, name, process_set)
    return result


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite the tensor with the root's; return it. Parameters and errors as in ``broadcast``.

    Examples
    --------
    >>> weights = torch.full((2,), float(hvd.rank()))
    >>> hvd.broadcast_(weights, root_rank=0)
    tensor([0., 0.])
    """
    result: Tensor = synchronize(async_ops.broadcast_(tensor, root_rank, name, process_set, waits=True))
    return result


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor | tuple[Tensor, Tensor]:
    """Send ``splits[r]`` rows to rank r, or equal shares; return the received rows. Differentiable.

    Parameters
    ----------
    tensor
        A tensor of at least one dimension and any dtype; dtype and all dimensions except the first must be the same on
        every rank.
    splits
        The number of rows for each rank, in rank order: a list, or a tensor of shape (ranks,) and dtype int32. Rows
        beyond their sum are not sent. None: equal shares; the number of rows must be a multiple of the size.
    name, process_set
        As in ``allreduce``. In a process set ranks are its members.

    Returns
    -------
    Tensor, or a pair of Tensors
        The received rows, in rank order. With ``splits`` also the number of rows from each rank: of shape (ranks,),
        int32.

    Raises
    ------
    ValueError
        On this rank alone: the splits are not one number for each rank, or exceed the number of rows; the rows cannot
        be divided equally; the tensor is 0-dimensional; as in ``broadcast``.
    HorovodInternalError
        As in ``allreduce``.

    Examples
    --------
    >>> hvd.alltoall(torch.zeros(2 * hvd.size(), 3)).shape == (2 * hvd.size(), 3)
    True

    On two ranks:

    >>> rows, counts = hvd.alltoall(torch.tensor([0, 1, 2]) + 10 * hvd.rank(), splits=[1, 2])
    >>> rows.tolist() == [[0, 10], [1, 2, 11, 12]][hvd.rank()]
    True
    """
    output, received = gradients.apply(gradients.HorovodAlltoall, tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce, and return this rank's share of the rows. Differentiable.

    The first ranks get one row more if the rows cannot be divided equally.

    Parameters
    ----------
    tensor
        As in ``allreduce``, with at least one dimension.
    op
        Average or Sum.
    name, compression, process_set, prescale_factor, postscale_factor
        As in ``allreduce``. In a process set shares are in the order of its members.

    Returns
    -------
    Tensor
        A tensor of shape (rows / ranks, ...), possibly without rows.

    Raises
    ------
    ValueError
        On this rank alone: the tensor is 0-dimensional; otherwise as in ``allreduce``.
    HorovodInternalError
        On every rank: another ``op``; otherwise as in ``allreduce``.

    Examples
    --------
    >>> hvd.reducescatter(torch.ones(hvd.size(), 2))
    tensor([[1., 1.]])

    On two ranks:

    >>> hvd.reducescatter(torch.tensor([1, 2, 3]), op=hvd.Sum).tolist() == [[2, 4], [6]][hvd.rank()]
    True
    """
    small, ctx = compression.compress(tensor)
    arguments = (name, op, process_set, prescale_factor, postscale_factor)
    result: Tensor = compression.decompress(gradients.apply(gradients.HorovodReducescatter, small, *arguments), ctx)
    return result


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce several tensors, all of them or none; return this rank's rows of each. Differentiable.

    Parameters and errors as in ``reducescatter``.

    Parameters
    ----------
    tensors
        The same number on every rank, in the same order. An empty group is a ValueError.

    Examples
    --------
    >>> hvd.grouped_reducescatter([torch.ones(hvd.size(), 2), torch.zeros(hvd.size())])
    [tensor([[1., 1.]]), tensor([0.])]
    """
    pairs = [compression.compress(tensor) for tensor in tensors]
    arguments = (name, op, process_set, prescale_factor, postscale_factor)
    results = gradients.apply(gradients.HorovodGroupedReducescatter, *arguments, *(small for small, _ in pairs))
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]
