"""Entry of a rank: ``python -P -m hvd_kernel.worker``, started by mpiexec.

``warm``: the same for a future notebook; it imports at idle priority.
With two arguments the supervisor starts it as a replacement: ``spare 4`` imports at idle priority, ``now 4``
immediately; the number is that of the ranks that share the cores. ``held``: started by an agent on another cluster.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

from hvd_kernel.worker import devices

_PR_SET_PDEATHSIG = 1
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def tie_to_parent() -> None:
    """Let the Linux kernel kill this process when its parent, mpiexec or the supervisor, ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        os._exit(1)  # the parent ended before prctl


def share_cores(ranks: int = 0) -> None:
    """Limit library threads to this rank's part of the cores, unless the user has set them; ranks=0: MPI's number."""
    ranks = ranks or int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1"))
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    for name in _THREADS:
        os.environ.setdefault(name, str(threads))


_OURS = (signal.SIGINT, signal.SIGTERM)  # handled by a rank for itself, not for processes that a cell forks
_masks = threading.local()


def free_children() -> None:
    """Restore Python's handlers of SIGINT and SIGTERM in processes that a cell forks, as multiprocessing.Pool does.

    The signals are blocked during the fork: one that arrived before the child had its own handlers would be lost, or
    handled as the rank's, and ``Pool.terminate`` would wait forever.
    """
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_reset_handlers)


def _block() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _reset_handlers() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()


if __name__ == "__main__":
    tie_to_parent()  # before anything slow: from now on this process ends with its parent
    mode, *ranks = sys.argv[1:] or [""]
    free_children()
    share_cores(*map(int, ranks))
    devices.apply_choice()
    from hvd_kernel.worker import bootstrap

    if mode == "held":
        bootstrap.main_of_agent()
    elif mode in {"", "warm"}:
        bootstrap.main(idle=mode == "warm")
    else:
        bootstrap.stand_by(idle=mode == "spare")
