"""From a bare process to a rank that answers: imports, MPI, the controller's address, communication, the namespace.

A spare has no MPI: it imports, waits until the supervisor tells it who to be, registers as that rank, and gets its
communication when the notebook asks for a rendezvous (``rendezvous``).

The imports come first because they take longest and need nobody: they run while the controller starts.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hvd_kernel import compat
from hvd_kernel.worker import communication, crash
from hvd_kernel.worker.frontend import names as frontend

_POLL_S = 0.002  # MPI's own wait would burn a core that the slower ranks need for their imports
_ADDRESS_BYTES = 8192


def main() -> None:
    """Become rank ``MPI.COMM_WORLD.rank`` and serve until told to stop."""
    os.environ["HVD_BOOTSTRAP"] = "mpi"
    compat.install_in_rank()
    _import_all()
    from hvd_kernel.worker.shell import engine  # noqa: PLC0415 - imported above

    rank, size, connection = find_controller()
    crash.install(connection["folder"])  # after MPI's own handlers
    communication.start()
    with _folder(connection.pop("folder")) as folder:
        os.environ["IPYTHONDIR"] = folder
        engine.serve(rank, connection, frontend.ready(rank, size))


def stand_by(*, idle: bool) -> None:
    """Get ready to be any rank, wait to be told which, and serve as that one; end where nobody tells.

    idle: do it in time that no other process wants.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the supervisor ignores it, and children inherit that
    supervisor = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    compat.install_in_rank()
    _import_quietly() if idle else _import_all()
    supervisor.sendall(b"warm\n")
    told = supervisor.makefile("rb").readline()
    if not told:
        return
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    supervisor.close()
    from hvd_kernel.worker.shell import engine  # noqa: PLC0415 - imported above

    who = json.loads(told)
    crash.install(who["connection"]["folder"])
    with _folder(who["connection"].pop("folder")) as folder:
        os.environ["IPYTHONDIR"] = folder
        engine.serve(who["rank"], who["connection"], {"rank": who["rank"], "size": who["size"]})


def _import_all() -> None:
    with _uncollected():
        frontend.import_first()
        importlib.import_module("hvd_kernel.worker.shell.engine")  # ipykernel


@contextmanager
def _uncollected() -> Iterator[None]:
    """Import without the garbage collector: a sixth of the time goes into looking at what stays for ever anyway.

    Frozen, none of it is looked at later, in the middle of a cell.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _import_quietly() -> None:
    """Import on a thread of the lowest priority: a process that has lowered its own may not raise it again."""
    importlib.import_module("numpy")  # first: the threads of its pools inherit the priority of who imports it
    thread = threading.Thread(target=_import_idly, name="hvd-import")
    thread.start()
    thread.join()
    _import_all()  # again: what failed there fails here


def _import_idly() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # of this thread alone
    _import_all()
    with _uncollected():
        frontend.import_everything()


def find_controller() -> tuple[int, int, dict[str, Any]]:
    """Start MPI and learn the controller's address, which mpiexec's stdin brings to rank 0."""
    from mpi4py import MPI  # noqa: PLC0415 - starts MPI

    world = MPI.COMM_WORLD
    line = bytearray(_ADDRESS_BYTES)
    if world.rank == 0:
        told = sys.stdin.buffer.readline()
        line[: len(told)] = told
    arrival = world.Ibcast(line, root=0)
    while not arrival.Test():
        time.sleep(_POLL_S)
    return world.rank, world.size, json.loads(line.rstrip(b"\0"))


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
