"""Horovod's API for torch: ``import hvd_kernel.torch as hvd``.

What Horovod has beyond this (process sets, alltoall, reducescatter, join, Adasum, elastic, SyncBatchNorm) is not here
yet, and is therefore absent rather than half there.
"""

from __future__ import annotations

from hvd_kernel import __version__
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.metrics import log
from hvd_kernel.process_sets import ProcessSet, global_process_set
from hvd_kernel.torch.compression import Compression
from hvd_kernel.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from hvd_kernel.torch.mpi_ops import (
    Average,
    Sum,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    rocm_built,
    shutdown,
    size,
    synchronize,
)
from hvd_kernel.torch.optimizer import DistributedOptimizer
