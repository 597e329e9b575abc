"""%hvdcancel: a job is ended as the interrupt key ends a cell."""

from __future__ import annotations

from hvd_kernel.diagnosis.inquiry import look
from hvd_kernel.diagnosis.stall import whereabouts
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.magics.context import Context
from hvd_kernel.magics.display.user_error import user_errors
from hvd_kernel.magics.jobs import BackgroundJob
from hvd_kernel.magics.options import Options

STUCK_S = 5.0
"""How long %hvdcancel waits for ranks to obey before it says which do not."""


@user_errors()
def cancel(context: Context, options: Options) -> None:
    """Cancel one job, or all.

    Example: ``%hvdcancel train``.

    Raises
    ------
    UsageError
        None is named, there is none of that name, or it has ended already.
    ClusterError
        Ranks have not obeyed within five seconds; they are named, with where they are.
    """
    if len(options.arguments) != 1:
        raise UsageError("%hvdcancel: name one job, as in %hvdcancel train, or %hvdcancel all")
    every, name = context.manager.jobs, options.arguments[0]
    chosen = [each for each in every if not each.ended.is_set()]
    if name != "all":
        chosen = [job := every.find(name)]
        if job.ended.is_set():
            raise UsageError(f"job {job.name} has ended already: {job.word(times=False)}")
    for job in reversed(chosen):  # those that wait first: none of them shall begin
        every.cancel(job)
    for job in chosen:
        _see_end(context, job)
    if not chosen:
        context.writer().say("no job runs\n")


def _see_end(context: Context, job: BackgroundJob) -> None:
    if not job.ended.wait(STUCK_S):
        raise ClusterError(
            f"job {job.name} was interrupted and has not ended within {STUCK_S:g} s: {_stuck(context, job)}. "
            f"%hvdcancel {job.name} interrupts it again (the third time replaces these ranks, and only them)"
        )
    context.writer().say(f"job {job.name}: {job.word(times=False)}\n")


def _stuck(context: Context, job: BackgroundJob) -> str:
    ranks = job.left() if job.left is not None else job.ranks
    return whereabouts(look(context.manager.current(), ranks)) or rank_list(ranks)
