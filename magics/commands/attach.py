"""%hvd attach: the ranks that an earlier kernel has kept, with their variables and the cell that they still run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import named
from hvd_kernel.magics.commands.hvdrun import watched
from hvd_kernel.magics.context import Desk
from hvd_kernel.magics.display.job_output import Recorder
from hvd_kernel.magics.display.user_error import plain_errors
from hvd_kernel.magics.jobs import Job
from hvd_kernel.magics.options import Options
from hvd_kernel.magics.shell.escalation import replace_stuck
from hvd_kernel.processes import detached

if TYPE_CHECKING:
    from hvd_kernel.cluster import Run, Session


def attach(desk: Desk, options: Options) -> None:
    """Take over a kept cluster; a cell that its ranks still run becomes a job."""
    with desk.holder.use():
        _check_alone(desk)
        name = options.words[1] if len(options.words) > 1 else ""
        found = detached.choose(detached.clusters(), name, desk.holder.place)
        session = desk.holder.attach(found, desk.screen().status())
    desk.screen().say(_told(session))
    if session.running and session.latest is not None:
        _follow(desk, session, session.latest)


def _check_alone(desk: Desk) -> None:
    session = desk.holder.session
    if session is None:
        return
    if session.kept:
        raise UsageError(f"this notebook has {session.kept} already: restart its kernel to let go of it")
    raise UsageError("this notebook has ranks of its own: `%hvd stop` ends them, then attach")


def _told(session: Session) -> str:
    alive = [each.rank for each in session.status() if each.alive]
    dead = [each for each in session.status() if not each.alive]
    lost = "".join(f"{named([each.rank])} is dead ({each.why}): `%hvd respawn`\n" for each in dead)
    return f"{session.kept}: {named(alive)} ready, with all variables\n{lost}" if alive else lost


def _follow(desk: Desk, session: Session, run: Run) -> None:
    """Watch what the ranks still run, in the background."""

    def work(job: Job) -> None:
        with plain_errors():
            watch, _, _ = watched(session, desk.holder, job.screen, lambda: run, job=job)
            replace_stuck(replace(desk, own=job.screen), watch)
            watch.check(desk.shell.user_ns.__contains__)

    job = Job(desk.holder.jobs.name(f"cell{run.cell}"), run.ranks, Recorder(desk.shell), work, cell=run.cell)
    verb = "runs" if len(run.ranks) == 1 else "run"
    before = f"what was printed before is in %hvdlogs --cell {run.cell}"
    desk.screen().say(f"{named(run.ranks)} still {verb} cell {run.cell}, now as a job; {before}\n")
    desk.holder.hand_over(job, lambda: None)
