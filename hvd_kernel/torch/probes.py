"""Build queries of torch's frontend: those of any framework, and torch's GPU."""

from __future__ import annotations

import torch

from hvd_kernel.core.build_info import (
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
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def _check_has_gpu() -> bool:
    """Tell whether torch sees a GPU; under the name that Horovod's scripts know."""
    return torch.cuda.is_available()
