"""%hvddebug: the debugger where a rank's last cell failed."""

from __future__ import annotations

import sys

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.cell_driver import drive
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.rank_failures import RankError
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.options import Options, resolve

POST_MORTEM = "%debug"
"""The cell that %hvddebug runs: a rank keeps its last exception for it (worker/debugger.py)."""


@user_errors()
def debug(context: Context, options: Options) -> None:
    """Open pdb where a rank's last cell has raised: on the rank that the line names, else on the first that failed.

    Example: ``%hvddebug --rank 1``.

    Raises
    ------
    UsageError
        No rank is named, and the last error here is not of a rank; or the ranks are busy with a cell.
    ClusterError
        No ranks are running.
    """
    with context.manager.use():
        session = context.manager.current()
        ranks = (failed_rank(),) if options.ranks == "all" else resolve(options.ranks, session.n)
        watch, _, _ = drive(session, context.manager, context.writer(), POST_MORTEM, ranks)
        watch.check()


def failed_rank() -> int:
    """Return the rank that the last error in this notebook names.

    Raises
    ------
    UsageError
        If the last error is not of a rank.
    """
    error = getattr(sys, "last_value", None)
    if not isinstance(error, RankError):
        raise UsageError("%hvddebug: the last error here is not of a rank: say which, as in %hvddebug --rank 1")
    return error.rank
