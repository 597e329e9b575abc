"""A rank's tie to its parent, its cores, its children. Standard library only: it runs before all imports."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

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


_OURS = (signal.SIGINT, signal.SIGTERM)  # a rank's handlers of these mean the rank, not what a cell forks
_masks = threading.local()


def free_children() -> None:
    """Have what a cell forks (multiprocessing.Pool, a DataLoader) take SIGINT and SIGTERM as any Python process does.

    They are held back during the fork: one that came before the child had its own handlers would be lost, or taken for
    the rank's, and ``Pool.terminate`` would wait for ever.
    """
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_as_any_process)


def _hold_back() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _as_any_process() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_through()
