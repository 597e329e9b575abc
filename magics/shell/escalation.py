"""Interrupt escalation, the third step: ranks that did not respond to the first two are killed and replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.commands.subcommands.respawn import respawn
from hvd_kernel.magics.interrupts import ending

if TYPE_CHECKING:
    from hvd_kernel.magics.context import Context
    from hvd_kernel.magics.runner import CellRunner


def replace_stuck(context: Context, watch: CellRunner) -> None:
    """Replace the ranks that the user has given up, if there are any; the cell's error tells their fate."""
    if not watch.given_up:
        return
    who, was = rank_list(watch.left), "was" if len(watch.left) == 1 else "were"
    writer = context.writer()
    if writer.looked_at:
        writer.say(f"{ending(watch.left)}\n", "stderr")
    session = context.manager.current()
    gone = {*watch.left, *session.dead}
    if len(gone) == session.n:  # nobody is left to go on from
        context.manager.start(session.spec, context.writer().status(), lambda text: context.writer().say(f"{text}\n"))
        watch.fate = f"{who} {was} ended, and fresh ranks have started: all variables are lost"
        return
    try:
        respawn(context, sorted(gone), force=True)
    except ClusterError as error:
        watch.fate = f"{who} {was} ended, but not replaced: {error}"
    else:
        watch.fate = f"{who} {was} ended and replaced, the variables there are lost"
