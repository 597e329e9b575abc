"""Collectives on torch tensors, with Horovod's signatures, under Horovod's file name.

The forms of one operation: ``op`` returns a new tensor and is differentiable, ``op_`` works in place, ``op_async`` and
``op_async_`` return a handle for ``poll`` and ``synchronize``. Names match operations across ranks.
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hvd_kernel._session import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.ops import Average, Sum, barrier, poll, synchronize
from hvd_kernel.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.torch import gradients
from hvd_kernel.torch.async_ops import (
    allgather_async,
    allreduce_async,
    allreduce_async_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    operation,
)
from hvd_kernel.torch.compression import Compression, Compressor
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
    "Average",
    "HorovodInternalError",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
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
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "synchronize",
]


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
    """Return the average (or ``op=Sum``) over all ranks. Differentiable."""
    op = operation(op, average)
    check(process_set)
    small, ctx = compression.compress(tensor)
    result: Tensor = gradients.apply(gradients.Allreduce, small, name, op, (prescale_factor, postscale_factor))
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
    """Average or sum over all ranks, in place; return the tensor."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
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
    """Return the averages of several tensors, reduced together or not at all. Differentiable."""
    op = operation(op, average)
    check(process_set)
    pairs = [compression.compress(tensor) for tensor in tensors]
    scales = (prescale_factor, postscale_factor)
    results = gradients.apply(gradients.GroupedAllreduce, name, op, scales, *(small for small, _ in pairs))
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
    """Average or sum several tensors in place, together or not at all; return them."""
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return list(synchronize(handle))


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Return every rank's rows, one after the other; the number of rows may differ. Differentiable."""
    check(process_set)
    result: Tensor = gradients.apply(gradients.Allgather, tensor, name)
    return result


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return the root's tensor on every rank. Differentiable."""
    check(process_set)
    result: Tensor = gradients.apply(gradients.Broadcast, tensor, root_rank, name)
    return result


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite the tensor by the root's; return it."""
    result: Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result
