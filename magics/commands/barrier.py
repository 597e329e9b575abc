"""%hvd barrier: wait until every rank is there."""

from __future__ import annotations

from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.cell_driver import drive
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.rank_failures import local_hint
from hvd_kernel.magics.options import Options
from hvd_kernel.magics.shell.escalation import replace_stuck

CODE = "hvd.barrier()"


def barrier(context: Context, _options: Options) -> None:
    """Run a cell of one line, which is interrupted and explained as any other.

    Example: ``%hvd barrier``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session, writer = context.manager.current(), context.writer()
    ranks = tuple(range(session.n))
    watch, _, _ = drive(session, context.manager, writer, CODE, ranks)
    replace_stuck(context, watch)
    watch.check(local_hint(context.shell.user_ns))
    writer.say(f"{rank_list(ranks)} met\n")
