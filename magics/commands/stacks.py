"""%hvd stacks: where every rank is, also while a cell runs."""

from __future__ import annotations

from hvd_kernel.diagnosis.inquiry import look
from hvd_kernel.diagnosis.stall import report
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.options import Options, resolve


def stacks(context: Context, options: Options) -> None:
    """Show where ranks are, also while a cell runs on them.

    Example: ``%hvd stacks --ranks 2``.

    Raises
    ------
    ClusterError
        No ranks are running.
    """
    session = context.manager.current()
    context.writer().say(report(look(session, resolve(options.ranks, session.n))))
