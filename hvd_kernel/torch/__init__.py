"""Horovod's API for torch: ``import hvd_kernel.torch as hvd``.

Horovod's page: https://horovod.readthedocs.io/en/stable/api.html

Names that are not called: ``Average``, ``Sum``, ``Adasum``, ``Min``, ``Max`` and ``Product`` are what ``op=`` takes,
Horovod's numbers 0 to 5; ``global_process_set`` is all ranks, the default of every ``process_set=``; ``elastic`` is a
module, for training that outlives a failure; ``__version__`` is the version of hvd_kernel, a str.
"""

from __future__ import annotations

import hvd_kernel.torch.installed  # isort: split # the others need what it looks for
from hvd_kernel import __version__
from hvd_kernel.core.basics import *  # noqa: F403 - exactly its __all__, which is in that of mpi_ops
from hvd_kernel.core.benchmark import bench
from hvd_kernel.core.build_info import *  # noqa: F403 - so is this one's
from hvd_kernel.core.metrics import log, log_artifact, log_model, outputs_path
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_kernel.core.shared_memory import release_shared
from hvd_kernel.torch import elastic, mpi_ops
from hvd_kernel.torch.compression import Compression
from hvd_kernel.torch.devices import has_gpu as _check_has_gpu  # under the name that Horovod's scripts know
from hvd_kernel.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from hvd_kernel.torch.mpi_ops import *  # noqa: F403 - exactly its __all__, which is Horovod's
from hvd_kernel.torch.optimizer import DistributedOptimizer
from hvd_kernel.torch.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm
from hvd_kernel.torch.training.buckets import shared_empty

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "SyncBatchNorm",
    "__version__",
    "add_process_set",
    "allgather_object",
    "bench",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "convert_sync_batchnorm",
    "elastic",
    "global_process_set",
    "log",
    "log_artifact",
    "log_model",
    "outputs_path",
    "release_shared",
    "remove_process_set",
    "shared_empty",
]
__all__ += mpi_ops.__all__
