"""Checks of a test file on ranks that mpirun starts: ``python -m hvdtest.under_mpi FILE FOLDER TRANSPORT:CHECK ...`` on each.

CHECK is the name of a function, and after a colon its argument, if it has one. Every rank writes to FOLDER/rankN what each
of its checks has returned, by TRANSPORT:CHECK, or the error that ended them.
One that takes too long ends, after it has said on stderr where every thread is.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from hvdtest.rank import load, release

LONGEST_S = 230.0


def main(file: str, folder: str, *wanted: str) -> None:
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)
    from mpi4py import MPI

    said: dict[str, Any] = {}
    try:
        for one in wanted:
            transport, check, *arguments = one.split(":")
            linked_by(transport)
            said[one] = getattr(load(file), check)(*arguments)
    except BaseException as error:
        said["error"] = traceback.format_exc()
        release(f"{type(error).__name__}: {error}")
    Path(folder, f"rank{MPI.COMM_WORLD.rank}").write_text(json.dumps(said))


def linked_by(transport: str) -> None:
    """The ranks reach each other by this transport from here on."""
    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    if os.environ.get("HVD_TRANSPORT") != transport:
        hvd.shutdown()
        os.environ["HVD_TRANSPORT"] = transport
    hvd.init()
    reached = {session.engine().transport_to(peer) for peer in range(hvd.size()) if peer != hvd.rank()}
    assert reached <= {transport}, f"reached by {reached} instead of {transport}"


if __name__ == "__main__":
    main(*sys.argv[1:])
