"""Starts the ranks of a measurement on this host, waits for them, and cleans up.

With mpi4py, the environment's mpiexec starts the ranks, so that MPI can be measured; without it, hvdrun's launcher.
"""

from __future__ import annotations

import importlib.util
import io
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.job_run import Job, launch

_MCA = ("--mca", "mpi_yield_when_idle", "1")
_TAIL = 4000


def run_ranks(np: int, arguments: Sequence[str], timeout_s: float) -> None:
    """Run ``python -m hvd_kernel.bench.rank`` on np ranks.

    Raises
    ------
    ClusterError
        A rank failed, or the ranks did not finish in time; the message contains their output.
    """
    command = [sys.executable, "-P", "-m", "hvd_kernel.bench.rank", *arguments]
    mpi = importlib.util.find_spec("mpi4py") is not None and (Path(sys.prefix) / "bin" / "mpiexec").exists()
    job = Job(command, np, env=variables(), timeout_s=timeout_s, use_mpi=mpi, mpi_args=_MCA if mpi else ())
    output = io.StringIO()
    outcome = launch(job, stdout=output, stderr=output)
    if outcome.status:
        raise ClusterError(f"a rank ended with status {outcome.status}:\n{output.getvalue()[-_TAIL:]}")


def variables() -> dict[str, str]:
    """Return variables for one thread per rank, and for the rendezvous of ours and torch: an MPI launcher sets none."""
    our_port, torch_port = _free_ports(2)
    return {
        "HOROVOD_CONTROLLER_ADDR": "127.0.0.1",
        "HOROVOD_CONTROLLER_PORT": str(our_port),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(torch_port),
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
