"""Background cells: %hvdjobs lists and shows them, %hvdcancel ends them, %hvdlogs shows what ranks have printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvd_kernel.diagnosis.inquiry import locate
from hvd_kernel.diagnosis.stall import whereabouts
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import label, rank_list, spans
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.rank_text import Lines, TextLimits, merge_lines
from hvd_kernel.magics.display.user_errors import OF_THE_RANKS, show_error, user_errors
from hvd_kernel.magics.display.writer import aligned
from hvd_kernel.magics.jobs import FAILED, RUNNING, BackgroundJob
from hvd_kernel.magics.options import Options, resolve
from hvd_kernel.protocol import rank_log

if TYPE_CHECKING:
    from pathlib import Path

    from hvd_kernel.cluster import Session
    from hvd_kernel.magics.display.writer import Writer


MAX_REASON = 200
"""Characters of an error's message in its announcement."""

JOBS_HELP = """\
    %hvdjobs                         one line per job
    %hvdjobs train                   its output, as its cell would have shown it; while it runs, the text so far
    %hvdjobs --wait [train ...]      wait for it, or for all jobs; fails as its cell would have failed
    %hvdjobs --wait --timeout 60     wait at most 60 s; the job continues, also after an interrupt"""


@user_errors()
def jobs(context: Context, options: Options) -> None:
    """List the jobs, show them or wait for them, at most ``--timeout`` seconds; also while a job runs.

    Example: ``%hvdjobs --wait train --timeout 60``.

    Raises
    ------
    UsageError
        There is no job of that name.
    Exception
        With ``--wait``: the error of the job's cell.
    """
    queue = context.manager.jobs
    named_jobs = [queue.find(name) for name in options.arguments]
    if options.wait:
        _wait(context, named_jobs or [job for job in queue if not job.awaited], options.timeout)
    elif named_jobs:
        _show_jobs(context, named_jobs)
    else:
        context.writer().write(_table(context))


def _wait(context: Context, jobs: list[BackgroundJob], timeout: float | None) -> None:
    """Wait for the end of all jobs; raise the error of the first failed one, and show the errors of the others."""
    deadline = None if timeout is None else time.monotonic() + timeout
    for job in jobs:
        job.wait_end(timeout, None if deadline is None else max(0.0, deadline - time.monotonic()))
    failed = [job for job in jobs if job.error is not None]
    raising = (job for job in failed if job.raise_error or not isinstance(job.error, OF_THE_RANKS))
    raised = next(raising, None)
    for job in failed:
        assert job.error is not None
        if job is not raised:
            show_error(job.error, context.writer())
    if raised is not None:
        raised.wait()


def _show_jobs(context: Context, jobs: list[BackgroundJob]) -> None:
    writer = context.writer()
    for job in jobs:
        if job.ended.is_set():
            job.writer.replay(writer)
        elif not writer.has_user:
            writer.write(f"job {job.name}: {job.state_text(times=False)}; its output comes when it has ended\n")
        else:
            writer.write(f"job {job.name}: {job.state_text(times=True)}{'; so far:' if job.cell else ''}\n")
            _show_text(context, job)


def _show_text(context: Context, job: BackgroundJob) -> None:
    """Show what its ranks have printed, from their logs; only the job's thread uses its output."""
    if job.cell:
        options = Options(cell=job.cell, ranks=spans(job.ranks))
        show_logs(context.writer(), context.manager.current(), options, text_so_far)


def _table(context: Context) -> str:
    times = context.writer().has_user
    rows = [
        (job.name, spans(job.ranks), job.state_text(times=times), _steps(job, times=times))
        for job in context.manager.jobs
    ]
    return aligned([("name", "ranks", "state", "steps"), *rows]) if rows else "no jobs\n"


def announce(context: Context, _info: object) -> None:
    """Announce the failure of a job once, above the next cell's output, if there is a user."""
    writer = context.writer()
    for job in context.manager.jobs if writer.has_user else ():
        if job.state == FAILED and not (job.awaited or job.announced):
            job.announced = True
            reason = f": {first}" if (first := str(job.error).partition("\n")[0][:MAX_REASON]) else ""
            writer.write(f"job {job.name} {job.state_text(times=False)}{reason} (%hvdjobs {job.name})\n", "stderr")


def _steps(job: BackgroundJob, *, times: bool) -> str:
    return "" if job.state == RUNNING and not times else str(job.steps() or "")


STUCK_S = 5.0
"""Time that %hvdcancel waits for the end of a job before it names the ranks that do not respond."""


@user_errors()
def cancel(context: Context, options: Options) -> None:
    """Cancel one job, or all.

    Example: ``%hvdcancel train``.

    Raises
    ------
    UsageError
        No job is named, no job has that name, or it has ended already.
    ClusterError
        Ranks have not responded within five seconds; they are named, with their stacks.
    """
    if len(options.arguments) != 1:
        raise UsageError("%hvdcancel: name one job, as in %hvdcancel train, or %hvdcancel all")
    queue, name = context.manager.jobs, options.arguments[0]
    chosen = [job for job in queue if not job.ended.is_set()]
    if name != "all":
        chosen = [job := queue.find(name)]
        if job.ended.is_set():
            raise UsageError(f"job {job.name} has ended already: {job.state_text(times=False)}")
    for job in reversed(chosen):  # the running one last, so that no queued job starts
        queue.cancel(job)
    for job in chosen:
        _await_end(context, job)
    if not chosen:
        context.writer().write("no job runs\n")


def _await_end(context: Context, job: BackgroundJob) -> None:
    if not job.ended.wait(STUCK_S):
        raise ClusterError(
            f"job {job.name} was interrupted and has not ended within {STUCK_S:g} s: {_stuck(context, job)}. "
            f"%hvdcancel {job.name} interrupts it again (the third time replaces these ranks, and only them)"
        )
    context.writer().write(f"job {job.name}: {job.state_text(times=False)}\n")


def _stuck(context: Context, job: BackgroundJob) -> str:
    ranks = job.left() if job.left is not None else job.ranks
    return whereabouts(locate(context.manager.current(), ranks)) or rank_list(ranks)


ANSWER_S = 10.0

Read = Callable[["Session", Options, int, str], str]


LOGS_HELP = """\
    %hvdlogs                         the last 100 lines of every rank
    %hvdlogs --ranks 2 --tail 50     the last 50 of rank 2
    %hvdlogs --cell 7                of one cell
    %hvdlogs --stream stderr         of one stream

The files have every byte that was printed, by Python, by C code and by the ranks' subprocesses; they exist
as long as the cluster. HVD_LOG_MAX_MB limits the size of each."""


@user_errors()
def logs(context: Context, options: Options) -> None:
    """Show the last ``--tail`` lines of each rank (100), also while a cell runs and after the death of a rank.

    Example: ``%hvdlogs --ranks 2 --tail 50``.

    Raises
    ------
    ClusterError
        No ranks are running, there is no log of that cell, or a dead rank's log is on another host.
    """
    show_logs(context.writer(), context.manager.current(), options, _log_path if options.path else _log_text)


def show_logs(writer: Writer, session: Session, options: Options, read: Read) -> None:
    """Write the log of each rank and stream."""
    ranks = resolve(options.ranks, session.n)
    for stream in [options.stream] if options.stream else rank_log.STREAMS:
        limits = TextLimits.for_ranks(len(ranks))
        lines = {rank: _terminal_lines(read(session, options, rank, stream), limits) for rank in ranks}
        writer.write(merge_lines(lines), "stdout" if options.path else stream)


def text_so_far(session: Session, options: Options, rank: int, stream: str) -> str:
    """Return a rank's log; "" of a cell that it has not started yet."""
    try:
        return _log_text(session, options, rank, stream)
    except ClusterError:
        return ""


def _log_text(session: Session, options: Options, rank: int, stream: str) -> str:
    logs = _log_folder(session)
    if not rank_log.path(logs, rank, stream).exists():
        return _remote_log(session, options, rank, stream, "text")
    try:
        return rank_log.excerpt(logs, rank, stream, options.cell, options.tail)
    except LookupError as error:
        raise ClusterError(f"rank {rank}: {error.args[0]}, so there is no log of it") from None


def _log_path(session: Session, options: Options, rank: int, stream: str) -> str:
    file = rank_log.path(_log_folder(session), rank, stream)
    return str(file) if file.exists() else _remote_log(session, options, rank, stream, "path")


def _remote_log(session: Session, options: Options, rank: int, stream: str, form: str) -> str:
    """Query a rank on another host for its log: its ``text`` or its ``path``."""
    question = {"stream": stream, "cell": options.cell, "lines": options.tail}
    answers = session.ask("log", [rank], question, timeout=ANSWER_S, urgent=True)
    if rank not in answers:
        raise ClusterError(f"{label([rank])} is dead, and its log was on its own host")
    return str(answers[rank][0][form])


def _log_folder(session: Session) -> Path:
    return rank_log.folder(str(session.folder / "ipython"))  # the name of launcher.environment


def _terminal_lines(text: str, limits: TextLimits) -> list[str]:
    lines = Lines(limits)
    lines.feed(text)
    return lines.lines()
