"""Verdict on an elastic job that is over: whose failure has ended it, what is written of that, and its status."""

from __future__ import annotations

from hvd_kernel.launch.elastic.events import EndJob
from hvd_kernel.launch.elastic.job.workers import WorkerProcess, Workers
from hvd_kernel.launch.job_run import Outcome
from hvd_kernel.launch.line_output import Write
from hvd_kernel.launch.outcome import failed, is_consequence, shell_status

_FAILED = 1


def report(write: Write, end: EndJob, workers: Workers, *, quiet: bool) -> None:
    """Write what was kept back of tracebacks, that of the worker that failed first at last, and why the job has ended.

    ``quiet``: whoever called tells of the failure himself, and none of it is written.
    """
    cause = _first_failed(end, workers)
    if quiet:
        for worker in workers:
            worker.outputs[1].forget()
        return
    theirs = None if cause is None else cause.outputs[1].held
    for worker in workers:
        if worker is cause:
            continue
        if worker.outputs[1].held == theirs:
            worker.outputs[1].forget()  # it comes last
        worker.outputs[1].release()
    if cause is not None:
        cause.outputs[1].release()
    if end.verdict == "failed":
        write(sentence(end, cause).encode())


def sentence(end: EndJob, cause: WorkerProcess | None) -> str:
    """Return the last line of a job that failed."""
    why = end.why.removesuffix(".")
    if cause is None or cause.status is None:
        return f"hvdrun: {why}; all ranks have ended.\n"
    more = f"; {why}" if why else ""
    return f"hvdrun: {cause.told} {failed(cause.status, cause.why)}{more}; all ranks have ended.\n"


def outcome(end: EndJob, workers: Workers) -> Outcome:
    """Return how the job has ended: codes are those of the last generation's ranks.

    Where there was no generation, as no process has said ``hvd.init()``, they are those of the processes as they were
    started, of a job that is done of those that have returned.
    """
    ranks = workers.ranks() or [each for each in workers if each.status == 0 or end.verdict != "done"]
    codes = tuple(worker.status or 0 for worker in ranks)
    numbers = tuple(worker.number for worker in ranks)
    if end.verdict == "done":
        return Outcome(codes, workers=numbers)
    cause = _first_failed(end, workers)
    if cause is None:
        return Outcome(codes, status=_FAILED, why=end.why, workers=numbers)
    failure = cause.failure()
    status = shell_status(failure.code) or _FAILED
    rank = ranks.index(cause) if cause.rank is None and cause in ranks else cause.rank
    return Outcome(codes, rank, failure.words, status, cause.why or end.why, numbers, cause.number)


def _first_failed(end: EndJob, workers: Workers) -> WorkerProcess | None:
    """Return whom the verdict names; where another rank's exception has released that one, the rank that raised.

    The verdict falls when the first of them has ended, which may be the one that was released.
    """
    named = None if end.worker is None else workers.get(end.worker)
    if named is None or not is_consequence(named.failure()):
        return named
    raised = (each for each in workers.ranks() if (each.status or 0) > 0 and not is_consequence(each.failure()))
    return next(raised, named)
