"""Bootstrap of a rank: imports, MPI, the controller's address, communication, the namespace.

A spare has no MPI: it imports, waits until the supervisor assigns it a rank, registers as that rank, and gets its
communication when the notebook requests a rendezvous (``rendezvous``).

The imports come first because they take longest and depend on no other process: they run while the controller starts.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
from typing import Any

from hvd_kernel import compat
from hvd_kernel.processes import rank_channel
from hvd_kernel.processes.channel.control_channel import read_packed, unpack
from hvd_kernel.processes.channel.messages import EngineConnection, Introduce
from hvd_kernel.worker import communication, crash, rendezvous
from hvd_kernel.worker import names as frontend
from hvd_kernel.worker.standby import Standby, at_low_priority, without_collection

_POLL_S = 0.002  # MPI's own wait would use a core that slower ranks need for their imports
_ADDRESS_BYTES = 8192


def main(*, idle: bool = False) -> None:
    """Run as rank ``MPI.COMM_WORLD.rank`` until the process is stopped.

    idle: first import everything that cells are likely to use, at idle priority.
    """
    os.environ["HVD_BOOTSTRAP"] = "mpi"
    compat.install_in_rank()
    if idle:
        at_low_priority(_import_everything, _lower_priority)
    _import_all()
    from hvd_kernel.worker.shell import engine  # noqa: PLC0415 - imported above

    rank, size, connection = find_controller()
    crash.install(connection["folder"])  # after MPI's own handlers
    communication.start()
    rendezvous.started(size)
    with _folder(connection.pop("folder")) as folder:
        os.environ["IPYTHONDIR"] = folder
        engine.serve(rank, connection, frontend.ready(rank, size))


def stand_by(*, idle: bool) -> None:
    """Prepare, wait for the assignment of a rank, and run as that rank; return if none is assigned.

    idle: prepare at idle priority.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the supervisor ignores it, and children inherit that
    standby = Standby()
    compat.install_in_rank()
    if idle:
        at_low_priority(_import_everything, _lower_priority)
    _import_all()  # raises the errors of the imports above
    standby.report_ready()
    introduction = standby.next_message(Introduce)
    if introduction is None:
        return
    standby.close()
    _serve(introduction)


def main_of_agent() -> None:
    """Import, read from the agent on stdin which rank this is, and run as that rank; return if stdin is closed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # engines ignore it, and children inherit that
    os.environ.pop(rank_channel.VARIABLE, None)  # the notebook uses its own channels
    compat.install_in_rank()
    _import_all()
    data = read_packed(sys.stdin.buffer)
    if not data:
        return
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, sys.stdin.fileno())
    os.close(null)
    introduction = unpack(data, Introduce)
    rendezvous.set_host(introduction.connection.pop("rendezvous"))
    _serve(introduction)


def _serve(introduction: Introduce) -> None:
    """Run as a rank that has not joined a communicator yet."""
    from hvd_kernel.worker.shell import engine  # noqa: PLC0415 - imported above

    connection = introduction.connection
    crash.install(connection["folder"])
    with _folder(connection.pop("folder")) as folder:
        os.environ["IPYTHONDIR"] = folder
        engine.serve(introduction.rank, connection, {"rank": introduction.rank, "size": introduction.size})


def _import_all() -> None:
    with without_collection():
        frontend.import_first()
        importlib.import_module("hvd_kernel.worker.shell.engine")  # ipykernel


def _lower_priority() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # of this thread alone


def _import_everything() -> None:
    _import_all()
    with without_collection():
        frontend.import_everything()


def find_controller() -> tuple[int, int, dict[str, Any]]:
    """Start MPI and return rank, size and the controller's address, which rank 0 reads from mpiexec's stdin."""
    from mpi4py import MPI  # noqa: PLC0415 - starts MPI

    world = MPI.COMM_WORLD
    address = bytearray(_ADDRESS_BYTES)
    if world.rank == 0:
        data = read_packed(sys.stdin.buffer)
        address[: len(data)] = data
    broadcast = world.Ibcast(address, root=0)
    while not broadcast.Test():
        time.sleep(_POLL_S)
    return world.rank, world.size, unpack(address, EngineConnection).connection


class _folder:  # noqa: N801 - reads like a function
    """Private folder of the cluster, or a temporary one on another host."""

    def __init__(self, shared: str) -> None:
        self._own = None if os.path.isdir(shared) else tempfile.TemporaryDirectory(prefix="hvd-")  # noqa: PTH112
        self._path = os.path.join(shared, "ipython") if self._own is None else self._own.name  # noqa: PTH118

    def __enter__(self) -> str:
        return self._path

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.cleanup()
