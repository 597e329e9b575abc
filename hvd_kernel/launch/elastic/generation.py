"""Begin of a generation: each of its workers is told its place, each that has none is told to leave."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_kernel.launch.elastic.assignment import Assigned, Assignment
from hvd_kernel.launch.elastic.events import Action, EndWorker, ReleaseHost, Say, SendTo
from hvd_kernel.launch.elastic.state import JobState, WorkerState
from hvd_kernel.launch.elastic.timers import For
from hvd_kernel.protocol.elastic import Place, Removed


def begin(job: JobState, plan: Assignment) -> Iterator[Action]:
    """Begin the next generation; all of its workers are ready."""
    before = job.generation
    members = [_worker(job, each) for each in plan.ranks]
    job.generation += 1
    yield from (SendTo(worker.number, place) for worker, place in zip(members, _places(job, plan), strict=True))
    for each, worker in zip(plan.ranks, members, strict=True):
        worker.joined = worker.joined or job.generation
        worker.generation, worker.rank, worker.ready = job.generation, each.rank, None
        job.timers.cancel(For.START, worker=worker.number)
    for other in job.alive:
        if other.joined and other not in members and not other.finished:  # one that starts has the next reset
            yield from dismiss(job, other, "the job is smaller now")
    job.slots = frozenset((each.host, each.slot) for each in plan.ranks)
    job.failures, job.before, job.cut_off, job.announcement, job.ended_well = [], [], {}, None, 0
    job.broken = job.abandoned = job.released = job.finishing = job.overdue = False
    job.timers.cancel(For.SLOTS, For.RELEASE, For.RESET)
    job.waits_since = 0.0
    if before:
        hosts = ", ".join(dict.fromkeys(each.host for each in plan.ranks))
        yield Say(f"generation {job.generation} begins: {len(members)} rank(s) on {hosts}")
    yield from _release(job, {each.host for each in plan.ranks})


def dismiss(job: JobState, worker: WorkerState, why: str) -> Iterator[Action]:
    """Tell a worker to leave, or end one that cannot hear it yet; one that trains is told when it comes to be ready."""
    worker.dismissed = True
    job.timers.cancel(For.START, worker=worker.number)
    if worker.ready:
        yield SendTo(worker.number, Removed(why))
    elif not worker.joined:
        yield EndWorker(worker.number, job.settings.end_grace_s)
        return
    yield job.timers.set(For.LEAVE, job.settings.leave_s, worker.number)


def _worker(job: JobState, each: Assigned) -> WorkerState:
    assert each.worker is not None
    return job.workers[each.worker]


def _places(job: JobState, plan: Assignment) -> Iterator[Place]:
    members = [_worker(job, each) for each in plan.ranks]
    asked = [worker.ready for worker in members]
    steps = {rank: ready.step for rank, ready in enumerate(asked) if ready and members[rank].joined}
    newest = max(steps.values(), default=0)
    # The lowest of several ranks is not always the oldest process: ranks of a host are beside each other.
    root = min((rank for rank in steps if steps[rank] == newest), key=lambda rank: members[rank].joined, default=0)
    fresh = tuple(rank for rank, worker in enumerate(members) if not worker.joined)
    last = job.generation - 1
    before = tuple(worker.rank if worker.joined and worker.generation == last else -1 for worker in members)
    port = asked[0].port if asked[0] else 0
    for each in plan.ranks:
        yield Place(
            generation=job.generation,
            rank=each.rank,
            size=len(members),
            local_rank=each.local_rank,
            local_size=each.local_size,
            cross_rank=each.cross_rank,
            cross_size=each.cross_size,
            hostname=each.host,
            address="",
            port=port,
            secret="",
            root=root,
            fresh=fresh,
            before=before,
        )


def _release(job: JobState, used: set[str]) -> Iterator[Action]:
    for host in sorted(job.in_use - used):
        job.in_use.discard(host)
        yield ReleaseHost(host)
