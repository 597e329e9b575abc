"""Horovod's API for torch: ``import hvd_kernel.torch as hvd``.

Horovod's page: https://horovod.readthedocs.io/en/stable/api.html

Names that are not functions: ``Average``, ``Sum``, ``Adasum``, ``Min``, ``Max`` and ``Product`` are the values of
``op=``, Horovod's numbers 0 to 5; ``global_process_set`` is all ranks, the default of every ``process_set=``;
``elastic`` is a module, for training that survives a failure; ``__version__`` is the version of hvd_kernel, a str.
"""

from __future__ import annotations

import importlib.util
import sys

from hvd_kernel import __version__
from hvd_kernel.core.basics import *  # noqa: F403 - exactly its __all__, which is in that of mpi_ops
from hvd_kernel.core.benchmark import bench
from hvd_kernel.core.build_info import *  # noqa: F403 - so is this one's
from hvd_kernel.core.metrics import log, log_artifact, log_model, outputs_path
from hvd_kernel.core.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hvd_kernel.core.shared_memory import release_shared
from hvd_kernel.formatting.install_command import install_command


def _check_torch() -> None:
    """Raise an error with the remedy if torch is missing.

    Raises
    ------
    ModuleNotFoundError
        torch is not installed.
    """
    if "torch" in sys.modules:
        is_installed = sys.modules["torch"] is not None
    else:
        is_installed = importlib.util.find_spec("torch") is not None
    if not is_installed:
        raise ModuleNotFoundError(
            f"hvd_kernel.torch needs torch, which is not installed in this Python: {install_command('torch')}",
            name="torch",
        )


_check_torch()

from hvd_kernel.torch import elastic, mpi_ops
from hvd_kernel.torch.buckets import shared_empty
from hvd_kernel.torch.compression import Compression
from hvd_kernel.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from hvd_kernel.torch.memory import has_gpu as _check_has_gpu  # the name that Horovod's scripts use
from hvd_kernel.torch.mpi_ops import *  # noqa: F403 - exactly its __all__, which is Horovod's
from hvd_kernel.torch.optimizer import DistributedOptimizer
from hvd_kernel.torch.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm

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
