"""What Horovod scripts ask about a build. All are callable before ``init``.

Our core stands where Horovod's Gloo stands (sockets and shared memory, no MPI underneath), so ``gloo_*`` say yes.
MPI starts the ranks but carries no data, so ``mpi_*`` say no.
"""

from __future__ import annotations

from typing import Any

import torch

from hvd_kernel import gpus


def mpi_enabled() -> bool:
    """Tell whether MPI carries the collectives."""
    return False


def mpi_built() -> bool:
    """Tell whether MPI could carry the collectives."""
    return False


def mpi_threads_supported() -> bool:
    """Refuse, as Horovod does without MPI."""
    raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")


def gloo_enabled() -> bool:
    """Tell whether sockets and shared memory carry the collectives."""
    return True


def gloo_built() -> bool:
    """Tell whether sockets and shared memory could carry the collectives."""
    return True


def nccl_built() -> int:
    """Return the version code of torch's NCCL, 22705 for 2.27.5; 0 where it could carry nothing."""
    if not cuda_built() or not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return 0
    nccl: Any = torch.cuda.nccl
    major, minor, patch = nccl.version()[:3]
    return int(major * 10_000 + minor * 100 + patch)


def ddl_built() -> bool:
    """Tell whether IBM's DDL is built in."""
    return False


def ccl_built() -> bool:
    """Tell whether oneCCL is built in."""
    return False


def cuda_built() -> bool:
    """Tell whether collectives can run on CUDA memory without passing through the host."""
    return gpus.has_plugin()


def rocm_built() -> bool:
    """Tell whether collectives run on ROCm memory without passing through the host."""
    return False


def _check_has_gpu() -> bool:
    """Tell whether torch sees a GPU; under the name that Horovod's scripts know."""
    return torch.cuda.is_available()
