"""Build queries of Horovod scripts (``mpi_built``), of any framework. All are callable before ``init``.

Our core takes the role of Horovod's Gloo (sockets and shared memory, without MPI), so ``gloo_*`` return True.
``*_built`` returns what could be used here, as ``hvdrun --check-build`` prints it; ``mpi_enabled`` whether MPI connects
these ranks.
"""

from __future__ import annotations

import importlib
import sys

from hvd_kernel.core import session
from hvd_kernel.processes import libraries
from hvd_kernel.settings import gpus

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


def mpi_enabled() -> bool:
    """Return whether MPI connects these ranks, as with ``mpirun`` and ``hvdrun --mpi``.

    Examples
    --------
    >>> hvd.mpi_enabled()
    False
    """
    return session.by_mpi()


def mpi_built() -> bool:
    """Return whether ranks could connect and communicate through MPI: mpi4py is installed.

    Examples
    --------
    >>> isinstance(hvd.mpi_built(), bool)
    True
    """
    return libraries.mpi()


def mpi_threads_supported() -> bool:
    """Return whether several threads may call MPI at once.

    Raises
    ------
    ValueError
        MPI does not connect these ranks, or they are not initialised yet.

    Examples
    --------
    >>> hvd.mpi_enabled() and hvd.mpi_threads_supported()
    False
    """
    if not mpi_enabled():
        raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")
    mpi = sys.modules["mpi4py.MPI"]
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def gloo_enabled() -> bool:
    """Return whether sockets and shared memory carry the collectives.

    Examples
    --------
    >>> hvd.gloo_enabled()
    True
    """
    return True


def gloo_built() -> bool:
    """Return whether sockets and shared memory could carry the collectives: the core can be loaded.

    Examples
    --------
    >>> hvd.gloo_built()
    True
    """
    try:
        importlib.import_module("hvd_kernel._native")
    except ImportError:
        return False
    return True


def nccl_built() -> int:
    """Return the version code of the NCCL that the core uses, 22705 for 2.27.5; 0 without NCCL.

    Examples
    --------
    >>> hvd.nccl_built() == 0 or hvd.cuda_built()
    True
    """
    return libraries.nccl() if cuda_built() else 0


def ddl_built() -> bool:
    """Return whether IBM's DDL is built in: never.

    Examples
    --------
    >>> hvd.ddl_built()
    False
    """
    return False


def ccl_built() -> bool:
    """Return whether oneCCL is built in: never.

    Examples
    --------
    >>> hvd.ccl_built()
    False
    """
    return False


def cuda_built() -> bool:
    """Return whether collectives can run on CUDA memory without passing through the host.

    Examples
    --------
    >>> isinstance(hvd.cuda_built(), bool)
    True
    """
    return gpus.has_plugin()


def rocm_built() -> bool:
    """Return whether collectives run on ROCm memory without passing through the host: never.

    Examples
    --------
    >>> hvd.rocm_built()
    False
    """
    return False
