"""%hvdjobs: what became of the cells that run in the background."""

from __future__ import annotations

import time

from hvd_kernel.formatting.rank_labels import spans
from hvd_kernel.magics.commands import hvdlogs
from hvd_kernel.magics.commands.subcommands.life import table
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display import error_policy
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.jobs import FAILED, RUNNING, BackgroundJob
from hvd_kernel.magics.options import Options

MAX_WHY = 200
"""Characters of an error's message in the line that announces it."""

MORE = """\
    %hvdjobs                         one line per job
    %hvdjobs train                   its output, as its cell would have shown it; while it runs, the text so far
    %hvdjobs --wait [train ...]      wait for it, or for all; fails as its cell would have failed
    %hvdjobs --wait --timeout 60     no longer than that; the job goes on, as it does after an interrupt"""


@user_errors()
def jobs(context: Context, options: Options) -> None:
    """List the jobs, show them or wait for them, ``--timeout`` seconds at most; also while one runs.

    Example: ``%hvdjobs --wait train --timeout 60``.

    Raises
    ------
    UsageError
        There is no job of that name.
    Exception
        With ``--wait``: what the job's cell has raised.
    """
    every = context.manager.jobs
    named_jobs = [every.find(word) for word in options.arguments]
    if options.wait:
        _wait(context, named_jobs or [each for each in every if not each.awaited], options.timeout)
    elif named_jobs:
        _show(context, named_jobs)
    else:
        context.writer().say(_table(context))


def _wait(context: Context, jobs: list[BackgroundJob], timeout: float | None) -> None:
    """Wait for the end of all; fail as the first that has failed, and show what went wrong with the others."""
    deadline = None if timeout is None else time.monotonic() + timeout
    for job in jobs:
        job.wait_end(timeout, None if deadline is None else max(0.0, deadline - time.monotonic()))
    failed = [job for job in jobs if job.error is not None]
    own = (job for job in failed if job.raise_error or not isinstance(job.error, error_policy.OF_THE_RANKS))
    raised = next(own, None)
    for job in failed:
        assert job.error is not None
        if job is not raised:
            error_policy.show(job.error, context.writer())
    if raised is not None:
        raised.wait()


def _show(context: Context, jobs: list[BackgroundJob]) -> None:
    writer = context.writer()
    for job in jobs:
        if job.ended.is_set():
            job.writer.replay(writer)
        elif not writer.looked_at:
            writer.say(f"job {job.name}: {job.word(times=False)}; its output comes when it has ended\n")
        else:
            writer.say(f"job {job.name}: {job.word(times=True)}{'; so far:' if job.cell else ''}\n")
            _show_text(context, job)


def _show_text(context: Context, job: BackgroundJob) -> None:
    """Show what its ranks have printed, from their logs: the renderer is its own thread's."""
    if job.cell:
        asked = Options(cell=job.cell, ranks=spans(job.ranks))
        hvdlogs.show(context.writer(), context.manager.current(), asked, hvdlogs.begun)


def _table(context: Context) -> str:
    times = context.writer().looked_at
    rows = [
        (job.name, spans(job.ranks), job.word(times=times), _steps(job, times=times)) for job in context.manager.jobs
    ]
    return table([("name", "ranks", "state", "steps"), *rows]) if rows else "no jobs\n"


def announce(context: Context, _info: object) -> None:
    """Say once, above the next cell's output, that a job has failed; only where the user looks."""
    writer = context.writer()
    for job in context.manager.jobs if writer.looked_at else ():
        if job.state == FAILED and not (job.awaited or job.announced):
            job.announced = True
            why = f": {first}" if (first := str(job.error).partition("\n")[0][:MAX_WHY]) else ""
            writer.say(f"job {job.name} {job.word(times=False)}{why} (%hvdjobs {job.name})\n", "stderr")


def _steps(job: BackgroundJob, *, times: bool) -> str:
    return "" if job.state == RUNNING and not times else str(job.steps() or "")
