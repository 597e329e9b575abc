"""Way of an elastic job to its next generation, from what the driver knows: ``settle`` after each event.

It starts workers in empty slots, tells members of changed hosts, waits for slots and for those that have yet to come,
and begins the generation when all of its workers are ready. Members train on while newcomers start.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from hvd_kernel.launch.elastic.assignment import Assignment
from hvd_kernel.launch.elastic.events import Action, Say, SendTo, StartWorker
from hvd_kernel.launch.elastic.generation import begin, dismiss
from hvd_kernel.launch.elastic.state import Announcement, JobState, WorkerState
from hvd_kernel.launch.elastic.timers import For
from hvd_kernel.launch.elastic.verdict import NO_HOSTS, failed, over
from hvd_kernel.launch.placement import Host
from hvd_kernel.protocol.elastic import ADDED, REMOVED, HostsUpdated


def settle(job: JobState, now: float) -> Iterator[Action]:
    """Do what is to be done now; after an End nothing is."""
    yield from over(job)
    yield from _watch_cooldowns(job, now)
    if job.is_finishing and not job.waiting:
        return
    yield from _adopt(job, now)
    if job.heard is None:
        return
    plan = job.plan(job.hosts, now)
    job.order = [host.name for host in job.ordered(job.hosts, now)]
    yield from _watch_stragglers(job)
    if len(plan.ranks) < job.needed:
        yield from _wait_for_slots(job, plan, now)
        return
    if _is_settled(job, plan):
        job.timers.cancel(For.SLOTS)
        job.overdue = False
        yield from _send_away_without_room(job, plan)
        return
    yield from _go_on(job, plan, now)


def _go_on(job: JobState, plan: Assignment, now: float) -> Iterator[Action]:
    if not _may_reset(job):
        if _must_reset(job, plan):
            yield failed(job, _limit_text(job))
        else:
            yield from _send_away(job, [each for each in job.alive if not each.joined], "no reset is left")
        return
    has_survivors = any(job.workers[each].joined for each in plan.workers)
    if not (has_survivors or job.stateless or job.can_resume):
        yield failed(job, NO_HOSTS)
        return
    yield from _start(job, plan)
    yield from _send_away_without_room(job, plan)
    possible = _possible(job, plan, now)
    if possible is not None and (has_survivors or not job.training):
        if job.timers.runs(For.LAST_CALL) and not _is_growing(job):
            return  # what has changed meanwhile would be the next reset
        yield from begin(job, possible)
        yield from settle(job, now)
    else:
        yield from _announce(job, plan, now)


def _possible(job: JobState, plan: Assignment, now: float) -> Assignment | None:
    """Return the generation that can begin now; None: some have yet to come.

    Those who have come wait for the processes in the slots that they had before. What comes beside them joins by the
    next reset, as in a generation that nothing has happened to, unless there are too few without it.
    """
    came = {(each.host, each.slot) for each in plan.ranks if each.worker is not None and job.workers[each.worker].ready}
    late = {(each.host, each.slot) for each in plan.ranks} - came
    if not late:
        return plan
    has_survivors = any(job.workers[each].joined for each in plan.workers)
    if job.stateless or not has_survivors or late & job.slots or len(came) < job.needed:
        return None
    return job.plan_of(came, now)


def _is_settled(job: JobState, plan: Assignment) -> bool:
    """Tell whether the next generation would be the present one."""
    return bool(job.members) and not (job.waiting or plan.empty) and plan.workers == {m.number for m in job.members}


def _may_reset(job: JobState) -> bool:
    limit = job.settings.reset_limit
    return limit is None or job.generation <= limit


def _must_reset(job: JobState, plan: Assignment) -> bool:
    """Tell whether the present generation cannot go on: new hosts alone are no reason."""
    leave = any(each.number in plan.leave for each in job.members)
    return bool(job.waiting or job.has_lost or leave or job.stateless)


def _limit_text(job: JobState) -> str:
    return f"the ranks would have to meet again once more, and --reset-limit {job.settings.reset_limit} is reached"


def _start(job: JobState, plan: Assignment) -> Iterator[Action]:
    """Start a worker in each empty slot; not again before any has shown that the program comes to its init."""
    if job.stateless and job.failures and not job.proven:
        return
    occupied = {(each.host, each.slot) for each in job.workers.values()}  # by those who are still on their way out
    for assigned in plan.empty:
        if (assigned.host, assigned.slot) not in occupied:
            worker = WorkerState(job.started, assigned.host, assigned.slot)
            job.started += 1
            job.workers[worker.number] = worker
            job.in_use.add(worker.host)
            yield StartWorker(worker.number, worker.host, worker.slot, assigned, len(plan.ranks))
            yield job.timers.set(For.START, job.settings.start_timeout_s, worker.number)


def _send_away(job: JobState, workers: list[WorkerState], why: str) -> Iterator[Action]:
    for each in workers:
        yield from dismiss(job, each, why)


def _send_away_without_room(job: JobState, plan: Assignment) -> Iterator[Action]:
    """Dismiss newcomers whose host went before they came."""
    yield from _send_away(job, [each for each in job.alive if not each.joined and each.number in plan.leave], "no room")


def _wait_for_slots(job: JobState, plan: Assignment, now: float) -> Iterator[Action]:
    if job.ended_well and not job.stateless:
        why = f"another rank has ended already, and fewer than {job.needed} are left"
        yield from _send_away(job, job.waiting, why)
        return
    if _must_reset(job, plan) and not _may_reset(job):
        yield failed(job, _limit_text(job))
    yield from _announce(job, plan, now)
    if not (job.waiting or job.broken or job.stateless):
        return  # they train until their next commit
    if job.stateless and job.ended_well and not any(each.ready for each in job.alive):
        return  # nobody waits: it is no program that communicates
    there, limit = len(plan.ranks), job.settings.elastic_timeout_s
    if job.overdue:
        yield failed(job, f"waited for {job.needed} slots, had {there} (--elastic-timeout, {limit:g} s)")
    if not (job.timers.runs(For.SLOTS) or job.timers.runs(For.LAST_CALL)):
        yield Say(f"waiting for {job.needed} slots, there are {there} (up to {limit:g} s)")
        yield job.timers.set(For.SLOTS, limit)


def _announce(job: JobState, plan: Assignment, now: float) -> Iterator[Action]:
    """Tell members who act on it that hosts have changed: at once who is to leave, and when newcomers are ready."""
    members = {each.number for each in job.members}
    leave = frozenset(members & set(plan.leave))
    come = frozenset((each.host, each.slot) for each in plan.ranks if each.worker not in members)
    ready = not plan.empty and all(job.workers[each].ready for each in plan.workers - members)
    if job.broken or job.waiting or not (leave or (come and ready)):
        return  # who has lost a peer comes without being told
    told = job.announcement
    if told is None or (told.leave, told.come) != (leave, come):
        told = job.announcement = Announcement(leave, come, now)
    change = REMOVED * bool(leave) | ADDED * bool(come)
    for each in job.members:
        if each.registered and not each.finished and each.number not in told.told:
            told.told.add(each.number)
            yield SendTo(each.number, HostsUpdated(told.time, change))


def _adopt(job: JobState, now: float) -> Iterator[Action]:
    """Have discovery's answer count: after the last call, in which further changes join it."""
    heard = job.heard
    if heard is None or _slots(heard) == _slots(job.hosts):
        job.timers.cancel(For.LAST_CALL)
        job.last_call_over = False
        return
    before, after = len(job.plan(job.hosts, now).ranks), len(job.plan(heard, now).ranks)
    is_short = before < job.needed
    at_once = job.settings.last_call_s <= 0 or (is_short and (after < job.needed or after == job.settings.max_np))
    if not (at_once or job.last_call_over):
        if not job.timers.runs(For.LAST_CALL):
            yield job.timers.set(For.LAST_CALL, job.settings.last_call_s)
        return
    if not is_short and _only_grows(job.hosts, heard) and _has_waited(job, now):
        return  # or hosts that come one after the other would keep the others waiting: they have the next reset
    job.hosts, job.last_call_over = heard, False
    job.timers.cancel(For.LAST_CALL)


def _has_waited(job: JobState, now: float) -> bool:
    """Tell whether a generation has waited for newcomers alone, for longer than two last calls."""
    waits = bool(job.alive) if job.stateless else bool(job.waiting and not job.training)
    job.waits_since = (job.waits_since or now) if waits else 0.0
    return waits and now > job.waits_since + 2 * job.settings.last_call_s


def _slots(hosts: tuple[Host, ...]) -> dict[str, int]:
    return {host.name: host.slots for host in hosts}


def _is_growing(job: JobState) -> bool:
    """Tell whether hosts that nobody has to wait for have come, and none has gone."""
    return not job.stateless and job.heard is not None and _only_grows(job.hosts, job.heard)


def _only_grows(before: tuple[Host, ...], after: tuple[Host, ...]) -> bool:
    slots = _slots(after)
    return all(host.slots <= slots.get(host.name, 0) for host in before)


def _watch_cooldowns(job: JobState, now: float) -> Iterator[Action]:
    until = job.blacklist.next_return(now)
    if until < inf and (until != job.watched or not job.timers.runs(For.COOLDOWN)):
        job.watched = until
        yield job.timers.set(For.COOLDOWN, max(0.0, until - now))


def _watch_stragglers(job: JobState) -> Iterator[Action]:
    """Have members told of a failure who have not noticed it, and replaced who do not come for too long."""
    if not (job.training and (job.abandoned or job.has_lost)):
        job.timers.cancel(For.RELEASE, For.RESET)
        return
    if not job.timers.runs(For.RESET):
        yield job.timers.set(For.RESET, job.settings.patience_s)
    if reason(job) and not (job.released or job.timers.runs(For.RELEASE)):
        yield job.timers.set(For.RELEASE, job.settings.release_s)


def reason(job: JobState) -> str:
    """Return why the generation has failed, as those know it who have left it; empty: it has not."""
    theirs = [each.ready.reason or "it has failed" for each in job.waiting if each.ready and each.ready.failed]
    return next((each.why for each in job.failures if each.joined), next(iter(theirs), ""))
