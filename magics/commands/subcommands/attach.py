"""%hvd attach: the ranks that an earlier kernel has kept, with their variables and the cell that they still run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.cell_driver import watched
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.job_output import JobWriter
from hvd_kernel.magics.display.rank_failures import local_hint
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.jobs import BackgroundJob
from hvd_kernel.magics.options import Options
from hvd_kernel.magics.shell.escalation import replace_stuck
from hvd_kernel.processes import detached

if TYPE_CHECKING:
    from hvd_kernel.cluster import CellRun, Session


def attach(context: Context, options: Options) -> None:
    """Take over a detached cluster; a cell that its ranks still run becomes a job.

    Example: ``%hvd attach digits``.

    Raises
    ------
    UsageError
        This notebook has ranks already.
    ClusterError
        None has that name or is of this folder, several are, or another kernel has it.
    """
    with context.manager.use():
        _check_alone(context)
        name = options.arguments[1] if len(options.arguments) > 1 else ""
        found = detached.choose(detached.clusters(), name, context.manager.place)
        session = context.manager.attach(found, context.writer().status())
    context.writer().say(_told(session))
    if session.running and session.latest is not None:
        _follow(context, session, session.latest)


def _check_alone(context: Context) -> None:
    session = context.manager.session
    if session is None:
        return
    if session.detached_name:
        raise UsageError(f"this notebook has {session.detached_name} already: restart its kernel to detach it")
    raise UsageError("this notebook has ranks of its own: `%hvd stop` ends them, then attach")


def _told(session: Session) -> str:
    alive = [each.rank for each in session.status() if each.alive]
    dead = [each for each in session.status() if not each.alive]
    lost = "".join(f"{rank_list([each.rank])} is dead ({each.why}): `%hvd respawn`\n" for each in dead)
    return f"{session.detached_name}: {rank_list(alive)} ready, with all variables\n{lost}" if alive else lost


def _follow(context: Context, session: Session, run: CellRun) -> None:
    """Watch what the ranks still run, in the background."""

    def work(job: BackgroundJob) -> None:
        with user_errors():
            watch, _, _ = watched(session, context.manager, job.writer, lambda: run, job=job)
            replace_stuck(replace(context, own=job.writer), watch)
            watch.check(local_hint(context.shell.user_ns))

    job = BackgroundJob(
        context.manager.jobs.name(f"cell{run.cell}"), run.ranks, JobWriter(context.shell), work, cell=run.cell
    )
    verb = "runs" if len(run.ranks) == 1 else "run"
    before = f"what was printed before is in %hvdlogs --cell {run.cell}"
    context.writer().say(f"{rank_list(run.ranks)} still {verb} cell {run.cell}, now as a job; {before}\n")
    context.manager.hand_over(job, lambda: None)
