"""Report on an elastic job that is over: the failure that has ended it, the last lines on stderr, and the outcome."""

from __future__ import annotations

from hvd_kernel.launch.elastic.events import EndJob
from hvd_kernel.launch.elastic.job.workers import WorkerProcess, Workers
from hvd_kernel.launch.job_run import Outcome
from hvd_kernel.launch.line_output import Write
from hvd_kernel.launch.outcome import failed, is_consequence, shell_status

_FAILED = 1


def report(write: Write, end: EndJob, workers: Workers, *, quiet: bool) -> None:
    """Write the held tracebacks, that of the worker that failed first as the last one, and why the job has ended.

    ``quiet``: write nothing, because the caller reports the failure.
    """
    cause = _first_failed(end, workers)
    if quiet:
        for worker in workers:
            worker.outputs[1].forget()
        return
    traceback = None if cause is None else cause.outputs[1].held
    for worker in workers:
        if worker is cause:
            continue
        if worker.outputs[1].held == traceback:
            worker.outputs[1].forget()  # it is written as the last one
        worker.outputs[1].release()
    if cause is not None:
        cause.outputs[1].release()
    if end.verdict == "failed":
        write(sentence(end, cause).encode())


def sentence(end: EndJob, cause: WorkerProcess | None) -> str:
    """Return the last line of a job that failed."""
    reason = end.reason.removesuffix(".")
    if cause is None or cause.status is None:
        return f"hvdrun: {reason}; all ranks have ended.\n"
    suffix = f"; {reason}" if reason else ""
    return f"hvdrun: {cause.title} {failed(cause.status, cause.reason)}{suffix}; all ranks have ended.\n"


def outcome(end: EndJob, workers: Workers) -> Outcome:
    """Return the outcome of the job, with the exit codes of the last generation's ranks.

    If there was no generation, because no process has called ``hvd.init()``, they are the codes of all processes in
    the order of their start; for a job that is done, of those that have returned.
    """
    ranks = workers.ranks() or [worker for worker in workers if worker.status == 0 or end.verdict != "done"]
    codes = tuple(worker.status or 0 for worker in ranks)
    numbers = tuple(worker.number for worker in ranks)
    if end.verdict == "done":
        return Outcome(codes, workers=numbers)
    cause = _first_failed(end, workers)
    if cause is None:
        return Outcome(codes, status=_FAILED, reason=end.reason, workers=numbers)
    failure = cause.failure()
    status = shell_status(failure.code) or _FAILED
    rank = ranks.index(cause) if cause.rank is None and cause in ranks else cause.rank
    return Outcome(codes, rank, failure.tail, status, cause.reason or end.reason, numbers, cause.number)


def _first_failed(end: EndJob, workers: Workers) -> WorkerProcess | None:
    """Return the worker that the driver blames; if it only reports another rank's exception, the rank that raised.

    The driver decides when the first of them has exited, which may be the one that reports the other's.
    """
    blamed = None if end.worker is None else workers.get(end.worker)
    if blamed is None or not is_consequence(blamed.failure()):
        return blamed
    raised = (worker for worker in workers.ranks() if (worker.status or 0) > 0 and not is_consequence(worker.failure()))
    return next(raised, blamed)
