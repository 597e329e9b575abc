"""Collectives on torch tensors, with Horovod's signatures, under Horovod's file name.

The forms of one operation: ``op`` returns a new tensor and is differentiable, ``op_`` works in place, ``op_async`` and
``op_async_`` return a handle for ``poll`` and ``synchronize``. Names match operations across ranks.
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hvd_kernel.core.ops import Adasum, Average, Max, Min, Product, Sum, barrier, join, poll, synchronize
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, init, remove_process_set  # noqa: F401 - those that are not used here are names of Horovod's module too
from hvd_kernel.core.session import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from hvd_kernel.core.tensor import reduction_of
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.torch import gradients, starts
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
from hvd_kernel.torch.probes import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
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
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

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
    """Return the average (or ``op=Sum``, Min, Max, Product, Adasum) over all ranks. Differentiable."""
    op = reduction_of(op, average)
    small, ctx = compression.compress(tensor)
    scales = (prescale_factor, postscale_factor)
    result: Tensor = gradients.apply(gradients.Allreduce, small, name, op, scales, process_set)
    return compression.decompress(result, ctx)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce over all ranks, in place; return the tensor."""
    op = reduction_of(op, average)
    handle = starts.allreduce_(tensor, name, op, (prescale_factor, postscale_factor), process_set, waits=True)
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
    """Return the reductions of several tensors, reduced together or not at all. Differentiable."""
    op = reduction_of(op, average)
    pairs = [compression.compress(tensor) for tensor in tensors]
    how = (name, op, (prescale_factor, postscale_factor), process_set)
    results = gradients.apply(gradients.GroupedAllreduce, *how, *(small for small, _ in pairs))
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
    """Reduce several tensors in place, together or not at all; return them."""
    op = reduction_of(op, average)
    scales = (prescale_factor, postscale_factor)
    return list(synchronize(starts.grouped_allreduce_(tensors, name, op, scales, process_set, waits=True)))


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Return every rank's rows, one after the other; the number of rows may differ. Differentiable."""
    result: Tensor = gradients.apply(gradients.Allgather, tensor, name, process_set)
    return result


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Return every rank's rows of several tensors, gathered together or not at all. Differentiable."""
    return list(gradients.apply(gradients.GroupedAllgather, name, process_set, *tensors))


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return the root's tensor on every rank. Differentiable."""
    result: Tensor = gradients.apply(gradients.Broadcast, tensor, root_rank, name, process_set)
    return result


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite the tensor by the root's; return it."""
    result: Tensor = synchronize(starts.broadcast_(tensor, root_rank, name, process_set, waits=True))
    return result


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor | tuple[Tensor, Tensor]:
    """Send ``splits[r]`` rows to rank r, or equal shares; return what came. Differentiable.

    With ``splits`` the result is a pair: what came, and how many rows came from each rank.
    """
    output, received = gradients.apply(gradients.Alltoall, tensor, splits, name, process_set)
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
    """
    small, ctx = compression.compress(tensor)
    scales = (prescale_factor, postscale_factor)
    result: Tensor = gradients.apply(gradients.Reducescatter, small, name, op, scales, process_set)
    return compression.decompress(result, ctx)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduce several tensors, together or not at all; return this rank's rows of each. Differentiable."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    how = (name, op, (prescale_factor, postscale_factor), process_set)
    results = gradients.apply(gradients.GroupedReducescatter, *how, *(small for small, _ in pairs))
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]
