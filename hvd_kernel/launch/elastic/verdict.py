"""Verdict on an elastic job: when it is over, and who failed first for a reason of its own."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_kernel.launch.elastic.events import Action, EndJob, Say
from hvd_kernel.launch.elastic.state import JobState

NO_HOSTS = "No hosts from previous set remaining, unable to broadcast state."


def failed(job: JobState, why: str) -> EndJob:
    """Return the end of a job that cannot go on."""
    failures = job.failures or job.before
    first = next((each for each in failures if not each.consequence), next(iter(failures), None))
    if first is None:
        return EndJob("failed", why)
    return EndJob("failed", why, first.worker)


def over(job: JobState) -> Iterator[Action]:
    """Yield the EndJob of a job that has nobody left who could go on; with checkpoints it may begin anew instead."""
    if job.stateless:
        if not job.alive and (job.failures or job.ended_well):
            yield from _all_ended(job)
        return
    if job.members:
        return
    if job.ended_well or job.finishing:
        yield from _all_ended(job)
    elif not job.can_resume:
        yield failed(job, "all workers have failed" if job.failures else "all workers have been told to leave")
    else:
        yield Say("all workers are lost: fresh ones start from the last checkpoint")
        job.before, job.failures = job.failures, []
        job.lost_at, job.broken = job.generation, False
        job.proven = any(each.ready for each in job.alive)


def _all_ended(job: JobState) -> Iterator[Action]:
    """Yield the EndJob when those are gone that have returned or been told to leave."""
    if any(each.joined for each in job.workers.values()):
        return
    if job.failures if job.stateless else job.has_lost:
        yield failed(job, "not all workers have ended well")
    else:
        yield EndJob("done")


def is_in_minority(job: JobState) -> bool:
    """Tell whether more members are behind a cut than here; between halves that of the lowest rank goes on.

    The launcher cannot know whether they live: agents end their workers when they cannot reach it, but not at once.
    """
    here = [each.rank for each in job.members if each.number not in job.cut_off]
    there = list(job.cut_off.values())
    return bool(there) and (len(here), -min(here, default=0)) < (len(there), -min(there))
