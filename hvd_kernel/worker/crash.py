"""Crash records of a rank, for the notebook to read: the stacks of a crash, or how it exited.

The record is a 0600 file named after the process in the cluster's private folder. faulthandler writes Python's stacks
to it without the interpreter, then passes the signal to the handler of Open MPI, which writes the C functions to
another file (``OMPI_MCA_opal_stacktrace_output``); therefore this is installed after MPI has started. A rank on another
host has no such folder; faulthandler then writes to mpiexec, which forwards it to the cluster's log.
"""

from __future__ import annotations

import atexit
import faulthandler
import operator
import os
from pathlib import Path
from typing import NoReturn, SupportsIndex


def install(folder: str) -> None:
    """Record crashes and exits of this process."""
    if not Path(folder).is_dir():
        faulthandler.enable(os.dup(2))  # ipykernel redirects 2 later
        return
    record = os.open(Path(folder) / f"crash.{os.getpid()}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o600)
    faulthandler.enable(record)
    os.register_at_fork(after_in_child=faulthandler.disable)  # a child's crash is not the rank's
    _record_exit(record)


def _record_exit(record: int) -> None:
    """Record an exit that is not a crash: os._exit, or the interpreter's end."""
    exit_now, rank = os._exit, os.getpid()

    def write(how: str) -> None:
        if os.getpid() == rank:
            os.write(record, f"left {how}\n".encode())
            faulthandler.dump_traceback(record, all_threads=False)

    def _exit(status: SupportsIndex) -> NoReturn:
        """Exit to the system with specified status, without normal exit processing."""
        number = operator.index(status)
        write(f"with os._exit({number})")
        exit_now(number)

    os._exit = _exit
    atexit.register(write, "because its interpreter came to an end")
