"""Starts the ranks of a measurement on this host, waits for them, and leaves none behind.

Through the mpiexec of this environment where mpi4py is here, so that MPI can be measured; else by itself.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hvd_kernel.errors import ClusterError

_FOREIGN = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HOROVOD_", "TORCHELASTIC_", "MASTER_")
_FOREIGN_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
_MPI = ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--allow-run-as-root")
_MCA = ("--mca", "pml", "ob1", "--mca", "btl", "self,sm", "--mca", "mpi_yield_when_idle", "1")
_PR_SET_PDEATHSIG = 1


def run_ranks(np: int, arguments: Sequence[str], timeout_s: float) -> None:
    """Run ``python -m hvd_kernel.bench.rank`` on np ranks.

    Raises
    ------
    ClusterError
        A rank failed, or they did not end in time; the message carries what they wrote.
    """
    command = [sys.executable, "-P", "-m", "hvd_kernel.bench.rank", *arguments]
    env = _environment()
    mpiexec = Path(sys.prefix) / "bin" / "mpiexec"
    if importlib.util.find_spec("mpi4py") is not None and mpiexec.exists():
        started = [_start([str(mpiexec), "-n", str(np), *_MPI, *_MCA, *command], env)]
    else:
        started = [_start(command, env | {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(np)}) for rank in range(np)]
    deadline = time.monotonic() + timeout_s
    try:
        for process in started:
            said, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            if process.returncode:
                raise ClusterError(f"a rank ended with status {process.returncode}:\n{said[-4000:]}")
    except subprocess.TimeoutExpired:
        raise ClusterError(f"the ranks did not end within {timeout_s:g} s.") from None
    finally:
        for process in started:
            _end(process)


def _start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_die_with_parent(),  # noqa: PLW1509 - one system call, no threads here yet
    )


def _die_with_parent() -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl

    def body() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # mpiexec ends its ranks then

    return body


def _end(process: subprocess.Popen[str]) -> None:
    """End what is still there of it."""
    if process.poll() is None:
        process.terminate()  # mpiexec passes it on to its ranks, which have sessions of their own
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _environment() -> dict[str, str]:
    """Ours, without what a launcher may have left, with one thread per rank and places to meet."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN) and k not in _FOREIGN_NAMES}
    ours, theirs = _free_ports(2)
    return kept | {
        "HOROVOD_CONTROLLER_ADDR": "127.0.0.1",
        "HOROVOD_CONTROLLER_PORT": str(ours),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(theirs),
        "OMP_NUM_THREADS": "1",
    }


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
