"""Bootstrap of a rank: imports, MPI, the controller's address, communication, the namespace.

A spare has no MPI: it imports, waits until the supervisor tells it who to be, registers as that rank, and gets its
communication when the notebook asks for a rendezvous (``rendezvous``).

The imports come first because they take longest and need nobody: they run while the controller starts.
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
from hvd_kernel.worker.frontend import names as frontend
from hvd_kernel.worker.standby import Standby, in_spare_time, uncollected

_POLL_S = 0.002  # MPI's own wait would burn a core that the slower ranks need for their imports
_ADDRESS_BYTES = 8192


def main(*, idle: bool = False) -> None:
    """Become rank ``MPI.COMM_WORLD.rank`` and serve until told to stop.

    idle: import all that cells are likely to want first, in time that no other process wants.
    """
    os.environ["HVD_BOOTSTRAP"] = "mpi"
    compat.install_in_rank()
    if idle:
        in_spare_time(_import_everything, _give_way)
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
    """Get ready to be any rank, wait to be told which, and serve as that one; end where nobody tells.

    idle: do it in time that no other process wants.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the supervisor ignores it, and children inherit that
    standby = Standby()
    compat.install_in_rank()
    if idle:
        in_spare_time(_import_everything, _give_way)
    _import_all()  # what has failed there fails here
    standby.say_ready()
    who = standby.told(Introduce)
    if who is None:
        return
    standby.leave()
    _serve(who)


def be_told() -> None:
    """Import, learn on stdin from the agent which rank this is, and serve as that one; end where nobody tells."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # engines ignore it, and children inherit that
    os.environ.pop(rank_channel.VARIABLE, None)  # the notebook asks over channels of its own
    compat.install_in_rank()
    _import_all()
    introduction = read_packed(sys.stdin.buffer)
    if not introduction:
        return
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, sys.stdin.fileno())
    os.close(null)
    who = unpack(introduction, Introduce)
    rendezvous.rendezvous_at(who.connection.pop("rendezvous"))
    _serve(who)


def _serve(who: Introduce) -> None:
    """Serve as a rank that has met nobody yet."""
    from hvd_kernel.worker.shell import engine  # noqa: PLC0415 - imported above

    crash.install(who.connection["folder"])
    with _folder(who.connection.pop("folder")) as folder:
        os.environ["IPYTHONDIR"] = folder
        engine.serve(who.rank, who.connection, {"rank": who.rank, "size": who.size})


def _import_all() -> None:
    with uncollected():
        frontend.import_first()
        importlib.import_module("hvd_kernel.worker.shell.engine")  # ipykernel


def _give_way() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # of this thread alone


def _import_everything() -> None:
    _import_all()
    with uncollected():
        frontend.import_everything()


def find_controller() -> tuple[int, int, dict[str, Any]]:
    """Start MPI and learn the controller's address, which mpiexec's stdin brings to rank 0."""
    from mpi4py import MPI  # noqa: PLC0415 - starts MPI

    world = MPI.COMM_WORLD
    address = bytearray(_ADDRESS_BYTES)
    if world.rank == 0:
        told = read_packed(sys.stdin.buffer)
        address[: len(told)] = told
    arrival = world.Ibcast(address, root=0)
    while not arrival.Test():
        time.sleep(_POLL_S)
    return world.rank, world.size, unpack(address, EngineConnection).connection


class _folder:  # noqa: N801 - reads like a function
    """The cluster's private folder, or one of our own on another host."""

    def __init__(self, shared: str) -> None:
        self._own = None if os.path.isdir(shared) else tempfile.TemporaryDirectory(prefix="hvd-")  # noqa: PTH112
        self._path = os.path.join(shared, "ipython") if self._own is None else self._own.name  # noqa: PTH118

    def __enter__(self) -> str:
        return self._path

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.cleanup()
