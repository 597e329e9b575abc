"""Crash records of a rank, for the notebook to read: the stacks of a crash, or how it exited.

The note is a 0600 file named after the process in the cluster's private folder. faulthandler writes Python's stacks
there without the interpreter's help, then hands the signal on to the handler of Open MPI, which adds the C functions in
a file of its own (``OMPI_MCA_opal_stacktrace_output``): so this is installed after MPI's start. A rank on another host
has no such folder; faulthandler's words then go to mpiexec, which writes them to the cluster's log.
"""

from __future__ import annotations

import atexit
import faulthandler
import operator
import os
from pathlib import Path
from typing import NoReturn, SupportsIndex


def install(folder: str) -> None:
    """Have crashes and departures of this process noted."""
    if not Path(folder).is_dir():
        faulthandler.enable(os.dup(2))  # ipykernel is going to redirect 2
        return
    note = os.open(Path(folder) / f"crash.{os.getpid()}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o600)
    faulthandler.enable(note)
    os.register_at_fork(after_in_child=faulthandler.disable)  # a child's crash is not the rank's
    _note_departure(note)


def _note_departure(note: int) -> None:
    """Note an end that is not a crash: os._exit, or the interpreter's own."""
    leave, rank = os._exit, os.getpid()

    def say(how: str) -> None:
        if os.getpid() == rank:
            os.write(note, f"left {how}\n".encode())
            faulthandler.dump_traceback(note, all_threads=False)

    def _exit(status: SupportsIndex) -> NoReturn:
        """Exit to the system with specified status, without normal exit processing."""
        number = operator.index(status)
        say(f"with os._exit({number})")
        leave(number)

    os._exit = _exit
    atexit.register(say, "because its interpreter came to an end")
