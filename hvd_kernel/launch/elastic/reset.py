"""Transitions of an elastic job, derived from what the driver knows: ``advance`` after each event.

It ends the job when it is over. Else it starts workers in empty slots, announces changed hosts to members, waits for
slots and missing workers, and begins the next generation when all of its workers are ready. Members continue to train
while newcomers start.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from hvd_kernel.formatting.units import plural
from hvd_kernel.launch.elastic.assignment import Assigned, Assignment
from hvd_kernel.launch.elastic.events import Action, EndJob, EndWorker, ReleaseHost, Say, SendTo, StartWorker
from hvd_kernel.launch.elastic.state import Announcement, JobState, TimerKind, WorkerState
from hvd_kernel.launch.placement import Host
from hvd_kernel.protocol.elastic import ADDED, REMOVED, HostsUpdated, Place, Removed

_NO_HOSTS = "No hosts from previous set remaining, unable to broadcast state."


def advance(job: JobState, now: float) -> Iterator[Action]:
    """Yield the actions that are due now; an EndJob is the last one."""
    yield from _end_if_over(job)
    yield from _watch_cooldowns(job, now)
    if job.is_finishing and not job.waiting:
        return
    yield from _accept_hosts(job, now)
    if job.discovered is None:
        return
    plan = job.plan(job.hosts, now)
    job.order = [host.name for host in job.ordered(job.hosts, now)]
    yield from _watch_stragglers(job)
    if len(plan.ranks) < job.needed:
        yield from _wait_for_slots(job, plan, now)
        return
    if _is_current(job, plan):
        job.timers.cancel(TimerKind.SLOTS)
        job.overdue = False
        yield from _dismiss_without_room(job, plan)
        return
    yield from _reset(job, plan, now)


def _reset(job: JobState, plan: Assignment, now: float) -> Iterator[Action]:
    if not _may_reset(job):
        if _must_reset(job, plan):
            yield failed(job, _limit_text(job))
        else:
            yield from _dismiss_all(job, [worker for worker in job.alive if not worker.joined], "no reset is left")
        return
    has_survivors = any(job.workers[number].joined for number in plan.workers)
    if not (has_survivors or job.stateless or job.can_resume):
        yield failed(job, _NO_HOSTS)
        return
    yield from _start(job, plan)
    yield from _dismiss_without_room(job, plan)
    possible = _possible(job, plan, now)
    if possible is not None and (has_survivors or not job.training):
        if job.timers.runs(TimerKind.LAST_CALL) and not _is_growing(job):
            return  # the change of the hosts would be the next reset
        yield from _begin(job, possible)
        yield from advance(job, now)
    else:
        yield from _announce(job, plan, now)


def _possible(job: JobState, plan: Assignment, now: float) -> Assignment | None:
    """Return the generation that can begin now; None: a worker is missing without which it cannot.

    Workers that are ready wait for the processes in the slots of their generation. Newcomers in other slots join in
    the next reset, as in an undisturbed generation, unless there are too few ranks without them.
    """
    ready = {
        (assigned.host, assigned.slot)
        for assigned in plan.ranks
        if assigned.worker is not None and job.workers[assigned.worker].ready
    }
    missing = {(assigned.host, assigned.slot) for assigned in plan.ranks} - ready
    if not missing:
        return plan
    has_survivors = any(job.workers[number].joined for number in plan.workers)
    if job.stateless or not has_survivors or missing & job.slots or len(ready) < job.needed:
        return None
    return job.plan_of(ready, now)


def _is_current(job: JobState, plan: Assignment) -> bool:
    """Return whether the planned generation is the present one."""
    members = {worker.number for worker in job.members}
    return bool(members) and not (job.waiting or plan.empty) and plan.workers == members


def _may_reset(job: JobState) -> bool:
    limit = job.settings.reset_limit
    return limit is None or job.generation <= limit


def _must_reset(job: JobState, plan: Assignment) -> bool:
    """Return whether the present generation cannot continue; new hosts alone do not prevent it."""
    leave = any(worker.number in plan.leave for worker in job.members)
    return bool(job.waiting or job.has_lost or leave or job.stateless)


def _limit_text(job: JobState) -> str:
    return f"the ranks would have to meet again once more, and --reset-limit {job.settings.reset_limit} is reached"


def _start(job: JobState, plan: Assignment) -> Iterator[Action]:
    """Start a worker in each empty slot; after failures only if some worker has shown that the program reaches init."""
    if job.stateless and job.failures and not job.proven:
        return
    occupied = {(worker.host, worker.slot) for worker in job.workers.values()}  # also by dismissed ones
    for assigned in plan.empty:
        if (assigned.host, assigned.slot) not in occupied:
            worker = WorkerState(job.started, assigned.host, assigned.slot)
            job.started += 1
            job.workers[worker.number] = worker
            job.in_use.add(worker.host)
            yield StartWorker(worker.number, worker.host, worker.slot, assigned, len(plan.ranks))
            yield job.timers.set(TimerKind.START, job.settings.start_timeout_s, worker.number)


def _dismiss_all(job: JobState, workers: list[WorkerState], reason: str) -> Iterator[Action]:
    for worker in workers:
        yield from _dismiss(job, worker, reason)


def _dismiss_without_room(job: JobState, plan: Assignment) -> Iterator[Action]:
    """Dismiss newcomers whose host has left before they joined."""
    newcomers = [worker for worker in job.alive if not worker.joined and worker.number in plan.leave]
    yield from _dismiss_all(job, newcomers, "no room")


def _dismiss(job: JobState, worker: WorkerState, reason: str) -> Iterator[Action]:
    """Tell a worker to leave; stop one that cannot receive it yet. One that trains gets it when it is ready."""
    worker.dismissed = True
    job.timers.cancel(TimerKind.START, worker=worker.number)
    if worker.ready:
        yield SendTo(worker.number, Removed(reason))
    elif not worker.joined:
        yield EndWorker(worker.number, job.settings.end_grace_s)
        return
    yield job.timers.set(TimerKind.LEAVE, job.settings.leave_s, worker.number)


# The next generation


def _begin(job: JobState, plan: Assignment) -> Iterator[Action]:
    """Begin the next generation, all of whose workers are ready: send each its place, dismiss the other workers."""
    is_reset = job.generation > 0
    members = [_worker(job, assigned) for assigned in plan.ranks]
    job.generation += 1
    yield from (SendTo(worker.number, place) for worker, place in zip(members, _places(job, plan), strict=True))
    for assigned, worker in zip(plan.ranks, members, strict=True):
        worker.joined = worker.joined or job.generation
        worker.generation, worker.rank, worker.ready = job.generation, assigned.rank, None
        job.timers.cancel(TimerKind.START, worker=worker.number)
    for worker in job.alive:
        if worker.joined and worker not in members and not worker.finished:  # a newcomer gets the next reset
            yield from _dismiss(job, worker, "the job is smaller now")
    job.slots = frozenset((assigned.host, assigned.slot) for assigned in plan.ranks)
    job.failures, job.before, job.cut_off, job.announcement, job.ended_well = [], [], {}, None, 0
    job.broken = job.abandoned = job.released = job.finishing = job.overdue = False
    job.timers.cancel(TimerKind.SLOTS, TimerKind.RELEASE, TimerKind.RESET)
    job.waits_since = 0.0
    hosts = dict.fromkeys(assigned.host for assigned in plan.ranks)
    if is_reset:
        yield Say(f"generation {job.generation} begins: {plural(len(members), 'rank')} on {', '.join(hosts)}")
    for host in sorted(job.in_use - set(hosts)):
        job.in_use.discard(host)
        yield ReleaseHost(host)


def _worker(job: JobState, assigned: Assigned) -> WorkerState:
    assert assigned.worker is not None
    return job.workers[assigned.worker]


def _places(job: JobState, plan: Assignment) -> Iterator[Place]:
    members = [_worker(job, assigned) for assigned in plan.ranks]
    readies = [worker.ready for worker in members]
    steps = {rank: ready.step for rank, ready in enumerate(readies) if ready and members[rank].joined}
    newest = max(steps.values(), default=0)
    # The lowest of several ranks is not always the oldest process: ranks of a host are adjacent.
    root = min((rank for rank in steps if steps[rank] == newest), key=lambda rank: members[rank].joined, default=0)
    fresh = tuple(rank for rank, worker in enumerate(members) if not worker.joined)
    last = job.generation - 1
    before = tuple(worker.rank if worker.joined and worker.generation == last else -1 for worker in members)
    port = readies[0].port if readies[0] else 0
    for assigned in plan.ranks:
        yield Place(
            generation=job.generation,
            rank=assigned.rank,
            size=len(members),
            local_rank=assigned.local_rank,
            local_size=assigned.local_size,
            cross_rank=assigned.cross_rank,
            cross_size=assigned.cross_size,
            hostname=assigned.host,
            address="",
            port=port,
            secret="",
            root=root,
            fresh=fresh,
            before=before,
        )


# Waiting for slots, hosts and workers


def _wait_for_slots(job: JobState, plan: Assignment, now: float) -> Iterator[Action]:
    if job.ended_well and not job.stateless:
        reason = f"another rank has ended already, and fewer than {job.needed} are left"
        yield from _dismiss_all(job, job.waiting, reason)
        return
    if _must_reset(job, plan) and not _may_reset(job):
        yield failed(job, _limit_text(job))
    yield from _announce(job, plan, now)
    if not (job.waiting or job.broken or job.stateless):
        return  # they train until their next commit
    if job.stateless and job.ended_well and not any(worker.ready for worker in job.alive):
        return  # no worker waits: the program does not communicate
    available, limit = len(plan.ranks), job.settings.elastic_timeout_s
    if job.overdue:
        yield failed(job, f"waited for {job.needed} slots, had {available} (--elastic-timeout, {limit:g} s)")
    if not (job.timers.runs(TimerKind.SLOTS) or job.timers.runs(TimerKind.LAST_CALL)):
        yield Say(f"waiting for {job.needed} slots, there are {available} (up to {limit:g} s)")
        yield job.timers.set(TimerKind.SLOTS, limit)


def _announce(job: JobState, plan: Assignment, now: float) -> Iterator[Action]:
    """Notify registered members of changed hosts: at once if members leave, else when the newcomers are ready."""
    members = {worker.number for worker in job.members}
    leave = frozenset(members & set(plan.leave))
    join = frozenset((assigned.host, assigned.slot) for assigned in plan.ranks if assigned.worker not in members)
    ready = not plan.empty and all(job.workers[number].ready for number in plan.workers - members)
    if job.broken or job.waiting or not (leave or (join and ready)):
        return  # members that have lost a peer leave their communicator without a notice
    announcement = job.announcement
    if announcement is None or (announcement.leave, announcement.join) != (leave, join):
        announcement = job.announcement = Announcement(leave, join, now)
    change = REMOVED * bool(leave) | ADDED * bool(join)
    for worker in job.members:
        if worker.registered and not worker.finished and worker.number not in announcement.notified:
            announcement.notified.add(worker.number)
            yield SendTo(worker.number, HostsUpdated(announcement.time, change))


def _accept_hosts(job: JobState, now: float) -> Iterator[Action]:
    """Make discovery's answer the hosts that count, after the last call, in which further changes join it."""
    discovered = job.discovered
    if discovered is None or _slots(discovered) == _slots(job.hosts):
        job.timers.cancel(TimerKind.LAST_CALL)
        job.last_call_over = False
        return
    before, after = len(job.plan(job.hosts, now).ranks), len(job.plan(discovered, now).ranks)
    is_short = before < job.needed
    immediately = job.settings.last_call_s <= 0 or (is_short and (after < job.needed or after == job.settings.max_np))
    if not (immediately or job.last_call_over):
        if not job.timers.runs(TimerKind.LAST_CALL):
            yield job.timers.set(TimerKind.LAST_CALL, job.settings.last_call_s)
        return
    if not is_short and _only_grows(job.hosts, discovered) and _has_waited(job, now):
        return  # hosts that arrive one by one would keep the members waiting: these hosts get the next reset
    job.hosts, job.last_call_over = discovered, False
    job.timers.cancel(TimerKind.LAST_CALL)


def _has_waited(job: JobState, now: float) -> bool:
    """Return whether a generation has waited for newcomers alone, for longer than two last calls."""
    waits = bool(job.alive) if job.stateless else bool(job.waiting and not job.training)
    job.waits_since = (job.waits_since or now) if waits else 0.0
    return waits and now > job.waits_since + 2 * job.settings.last_call_s


def _slots(hosts: tuple[Host, ...]) -> dict[str, int]:
    return {host.name: host.slots for host in hosts}


def _is_growing(job: JobState) -> bool:
    """Return whether hosts were added for which no member has to wait, and none was removed."""
    return not job.stateless and job.discovered is not None and _only_grows(job.hosts, job.discovered)


def _only_grows(before: tuple[Host, ...], after: tuple[Host, ...]) -> bool:
    slots = _slots(after)
    return all(host.slots <= slots.get(host.name, 0) for host in before)


def _watch_cooldowns(job: JobState, now: float) -> Iterator[Action]:
    until = job.blacklist.next_return(now)
    if until < inf and (until != job.next_return or not job.timers.runs(TimerKind.COOLDOWN)):
        job.next_return = until
        yield job.timers.set(TimerKind.COOLDOWN, max(0.0, until - now))


def _watch_stragglers(job: JobState) -> Iterator[Action]:
    """Set the timers after which a failure is reported to members that train on, and after which they are replaced."""
    if not (job.training and (job.abandoned or job.has_lost)):
        job.timers.cancel(TimerKind.RELEASE, TimerKind.RESET)
        return
    if not job.timers.runs(TimerKind.RESET):
        yield job.timers.set(TimerKind.RESET, job.settings.patience_s)
    if failure_reason(job) and not (job.released or job.timers.runs(TimerKind.RELEASE)):
        yield job.timers.set(TimerKind.RELEASE, job.settings.release_s)


def failure_reason(job: JobState) -> str:
    """Return why the generation has failed, as the members report that have left it; empty: it has not failed."""
    reported = [
        worker.ready.reason or "it has failed" for worker in job.waiting if worker.ready and worker.ready.failed
    ]
    return next((failure.reason for failure in job.failures if failure.joined), next(iter(reported), ""))


# The end of the job


def failed(job: JobState, reason: str) -> EndJob:
    """Return the end of a job that cannot continue."""
    failures = job.failures or job.before
    first = next((failure for failure in failures if not failure.consequence), next(iter(failures), None))
    if first is None:
        return EndJob("failed", reason)
    return EndJob("failed", reason, first.worker)


def _end_if_over(job: JobState) -> Iterator[Action]:
    """Yield the EndJob of a job without a worker that could continue; with checkpoints it may restart instead."""
    if job.stateless:
        if not job.alive and (job.failures or job.ended_well):
            yield from _end_when_all_exited(job)
        return
    if job.members:
        return
    if job.ended_well or job.finishing:
        yield from _end_when_all_exited(job)
    elif not job.can_resume:
        yield failed(job, "all workers have failed" if job.failures else "all workers were dismissed")
    else:
        yield Say("all workers are lost: new ones start from the last checkpoint")
        job.before, job.failures = job.failures, []
        job.lost_at, job.broken = job.generation, False
        job.proven = any(worker.ready for worker in job.alive)


def _end_when_all_exited(job: JobState) -> Iterator[Action]:
    """Yield the EndJob when the workers have exited that have returned or been dismissed."""
    if any(worker.joined for worker in job.workers.values()):
        return
    if job.failures if job.stateless else job.has_lost:
        yield failed(job, "not all workers have ended well")
    else:
        yield EndJob("done")


def is_in_minority(job: JobState) -> bool:
    """Return whether a partition has cut off more members than are here; of two halves that of the lowest rank wins.

    The launcher cannot know whether they live: agents stop their workers when they cannot reach it, but not at once.
    """
    here = [worker.rank for worker in job.members if worker.number not in job.cut_off]
    cut_off = list(job.cut_off.values())
    return bool(cut_off) and (len(here), -min(here, default=0)) < (len(cut_off), -min(cut_off))
