"""Exception hook for a rank of MPI whose program an exception ends. A shared leaf.

mpi4py calls MPI_Finalize at the end of the process, and that waits for all ranks: those that go on, or wait for this
one, would keep it, and with it the news of its end, from the launcher. Such a rank ends without MPI, and the launcher
ends the others.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType

_FAILED = 1
_watching = False
_uncaught = False


def watch() -> None:
    """Look out for it from now on; to be called when MPI has started. Again: nothing happens."""
    global _watching
    if _watching or hasattr(sys, "ps1"):  # at a prompt an exception ends nothing
        return
    _watching, before = True, sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _uncaught  # noqa: PLW0603 - of the process, as the hook
        _uncaught = isinstance(error, Exception)  # the interrupt key ends all ranks anyway
        before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(_end)


def _end() -> None:
    if not _uncaught:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(_FAILED)
