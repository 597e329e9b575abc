"""A rank's tie to its parent and its share of the machine. Standard library only: this runs before every import."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def tie_to_parent() -> None:
    """Have the kernel kill this process when its parent, mpiexec or the supervisor, ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        os._exit(1)  # it ended while we asked


def share_cores(ranks: int = 0) -> None:
    """Give each of the ranks of this host (0: as many as MPI says) its part of the cores, unless the user has."""
    ranks = ranks or int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
    each = max(1, len(os.sched_getaffinity(0)) // ranks)
    for name in _THREADS:
        os.environ.setdefault(name, str(each))
