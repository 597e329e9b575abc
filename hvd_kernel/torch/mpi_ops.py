"""Collectives on torch tensors, with Horovod's signatures, under Horovod's file name.

The forms of one operation: ``op`` returns a new tensor and is differentiable, ``op_`` works in place, ``op_async`` and
``op_async_`` return a handle for ``poll`` and ``synchronize``. Names match operations across ranks.
Their derivatives are told in gradients.
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
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set  # noqa: F401 - those that are not used here are names of Horovod's module too
from hvd_kernel.core.tensor import reduction_of
from hvd_kernel.torch import at_once, dispatch, gradients
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

call_stack.register_core_caller(__name__)  # by at_once
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
        Any dense tensor, also empty or 0-dimensional; of the same shape and dtype on every rank. Average: integers
        (exact, rounded toward zero), floats and complex; Sum and Product: bool too; Min and Max: all but complex;
        Adasum: floats.
    average
        Horovod's old form, with a DeprecationWarning: True is ``op=Average``, False is ``op=Sum``.
    name
        By which ranks match operations; without it, by how many calls each rank has made, failed ones too.
    compression
        What travels: ``Compression.none``, ``fp16`` or ``bf16``.
    op
        The reduction; None is Average.
    prescale_factor, postscale_factor
        What each rank's tensor is multiplied by before the reduction, and the result after it.
    process_set
        The ranks that take part; this rank is one of them.

    Returns
    -------
    Tensor
        A new one of the tensor's shape, dtype and device; the same on every rank.

    Raises
    ------
    ValueError
        On this rank alone, before anything is sent: the dtype has no such reduction, ``average`` and ``op`` are both
        given, the name is in flight already, or this rank is not a member of the set.
    HorovodInternalError
        On every rank: shapes, dtypes or reductions differ (Mismatch), or a rank has failed (RankFailed, RankDied); on
        this one: before ``init``.

    Examples
    --------
    >>> hvd.allreduce(torch.tensor([1.0, 2.0]), name="loss")  # every rank has the same
    tensor([1., 2.])

    On two ranks:

    >>> hvd.allreduce(torch.tensor([1, 2]) * (hvd.rank() + 1), op=hvd.Sum)
    tensor([3, 6])
    """
    if compression is Compression.none and process_set is global_process_set and at_once.is_plain(tensor):
        how = (average, name, op, prescale_factor, postscale_factor, process_set)
        output: Tensor | None = at_once.calls.allreduce(tensor, torch.empty_like, *how)
        if output is not None:
            return output
    small, ctx = compression.compress(tensor)
    reduction = reduction_of(op, average)
    how = (None, name, reduction, prescale_factor, postscale_factor, process_set)
    result: Tensor = compression.decompress(gradients.apply(gradients.HorovodAllreduce, small, *how), ctx)
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
    done: Tensor | None = at_once.calls.allreduce(
        tensor, tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    if done is not None:
        return done
    op = reduction_of(op, average)
    handle = dispatch.allreduce_(tensor, name, op, (prescale_factor, postscale_factor), process_set, waits=True)
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
    """Return the reductions of several tensors, reduced together or not at all. Differentiable.

    Parameters and errors as in ``allreduce``.

    Parameters
    ----------
    tensors
        As many on every rank, in the same order; they may differ in shape and dtype. None at all is a ValueError.

    Examples
    --------
    >>> hvd.grouped_allreduce([torch.ones(1), torch.zeros(2, dtype=torch.int64)])
    [tensor([1.]), tensor([0, 0])]
    """
    if compression is Compression.none and process_set is global_process_set and at_once.are_plain(tensors):
        usual = (average, name, op, prescale_factor, postscale_factor, process_set)
        outputs: tuple[Tensor, ...] | None = at_once.calls.grouped(tensors, torch.empty_like, *usual)
        if outputs is not None:
            return list(outputs)
    pairs = [compression.compress(tensor) for tensor in tensors]
    how = (None, name, reduction_of(op, average), prescale_factor, postscale_factor, process_set)
    results = gradients.apply(gradients.HorovodGroupedAllreduce, *how, *(small for small, _ in pairs))
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
    """Reduce several tensors in place, together or not at all; return them.

    Parameters and errors as in ``grouped_allreduce``.

    Examples
    --------
    >>> pair = [torch.ones(1), torch.zeros(2)]
    >>> [out is mine for out, mine in zip(hvd.grouped_allreduce_(pair), pair)]
    [True, True]
    """
    done: tuple[Tensor, ...] | None = at_once.calls.grouped(
        tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    if done is not None:
        return list(done)
    op = reduction_of(op, average)
    scales = (prescale_factor, postscale_factor)
    return list(synchronize(dispatch.grouped_allreduce_(tensors, name, op, scales, process_set, waits=True)))


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Return every rank's rows, one after the other; the number of rows may differ, and be 0. Differentiable.

    Parameters
    ----------
    tensor
        Of 1 dimension or more and any dtype; dtype and dimensions but the first are the same on every rank.
    name, process_set
        As in ``allreduce``. In a set rows are in the order of its members.

    Returns
    -------
    Tensor
        Of shape (all ranks' rows, ...), on the tensor's device.

    Raises
    ------
    IndexError
        The tensor is 0-dimensional.
    ValueError
        The dtype is not known to the core, the name is in flight already, or this rank is not a member of the set.
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
    """Return every rank's rows of several tensors, gathered together or not at all. Differentiable.

    Parameters and errors as in ``allgather``.

    Parameters
    ----------
    tensors
        As many on every rank, in the same order. None at all is a ValueError.

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
    """Return the root's tensor on every rank, as a new one on the device of its own. Differentiable.

    Parameters
    ----------
    tensor
        Of any shape and dtype, the same on every rank; those of other ranks than the root only say the shape.
    root_rank
        Whose tensor it is: a rank of all, also in a process set.
    name, process_set
        As in ``allreduce``.

    Raises
    ------
    ValueError
        On this rank alone: there is no such root in the set, the dtype is not known to the core, the name is in flight
        already, or this rank is not a member of the set.
    HorovodInternalError
        On every rank: also when they name different roots; else as in ``allreduce``.

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
    """Overwrite the tensor by the root's; return it. Parameters and errors as in ``broadcast``.

    Examples
    --------
    >>> weights = torch.full((2,), float(hvd.rank()))
    >>> hvd.broadcast_(weights, root_rank=0)
    tensor([0., 0.])
    """
    result: Tensor = synchronize(dispatch.broadcast_(tensor, root_rank, name, process_set, waits=True))
    return result


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor | tuple[Tensor, Tensor]:
    """Send ``splits[r]`` rows to rank r, or equal shares; return what came. Differentiable.

    Parameters
    ----------
    tensor
        Of at least one dimension, and of any dtype; dtype and dimensions but the first are the same on every rank.
    splits
        How many of the rows each rank gets, in rank order: a list, or a tensor of shape (ranks,) and dtype int32. Rows
        beyond their sum stay here. None: equal shares, for which the rows must divide.
    name, process_set
        As in ``allreduce``. In a set ranks are its members.

    Returns
    -------
    Tensor, or a pair of Tensors
        What came, in rank order. With ``splits`` also how many rows came from each rank: of shape (ranks,), int32.

    Raises
    ------
    ValueError
        On this rank alone: the splits are not one number for each rank, or are more than there are rows; equal shares
        do not divide; the tensor is 0-dimensional; as in ``broadcast``.
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

    The first ranks get one row more where the rows do not divide.

    Parameters
    ----------
    tensor
        As in ``allreduce``, of at least one dimension.
    op
        Average or Sum.
    name, compression, process_set, prescale_factor, postscale_factor
        As in ``allreduce``. In a set shares are in the order of its members.

    Returns
    -------
    Tensor
        Of shape (rows / ranks, ...), which may be no rows.

    Raises
    ------
    ValueError
        On this rank alone: the tensor is 0-dimensional; else as in ``allreduce``.
    HorovodInternalError
        On every rank: another ``op``; else as in ``allreduce``.

    Examples
    --------
    >>> hvd.reducescatter(torch.ones(hvd.size(), 2))
    tensor([[1., 1.]])

    On two ranks:

    >>> hvd.reducescatter(torch.tensor([1, 2, 3]), op=hvd.Sum).tolist() == [[2, 4], [6]][hvd.rank()]
    True
    """
    small, ctx = compression.compress(tensor)
    how = (name, op, process_set, prescale_factor, postscale_factor)
    result: Tensor = compression.decompress(gradients.apply(gradients.HorovodReducescatter, small, *how), ctx)
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
    """Reduce several tensors, together or not at all; return this rank's rows of each. Differentiable.

    Parameters and errors as in ``reducescatter``.

    Parameters
    ----------
    tensors
        As many on every rank, in the same order. None at all is a ValueError.

    Examples
    --------
    >>> hvd.grouped_reducescatter([torch.ones(hvd.size(), 2), torch.zeros(hvd.size())])
    [tensor([[1., 1.]]), tensor([0.])]
    """
    pairs = [compression.compress(tensor) for tensor in tensors]
    how = (name, op, process_set, prescale_factor, postscale_factor)
    results = gradients.apply(gradients.HorovodGroupedReducescatter, *how, *(small for small, _ in pairs))
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]
