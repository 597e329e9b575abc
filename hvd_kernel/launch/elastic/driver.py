"""Elastic driver as a pure state machine: events in, actions out. No clock, no thread, no process, no file.

``step`` takes one event and returns what is to be done for it; whoever does that (job.py) brings back what came of it
as events. An event only changes what the driver knows (state.py); what follows from that is looked up anew after each
one (reset.py), so no order of events is a special case. The same code runs in virtual time, with seeded faults:
tests/unit/elastic/test_elastic_schedules.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic.reset import reason, settle
from hvd_kernel.launch.elastic.settings import DriverSettings
from hvd_kernel.launch.elastic.state import JobState, WorkerFailure, WorkerState
from hvd_kernel.launch.elastic.timers import For
from hvd_kernel.launch.elastic.verdict import failed, is_in_minority
from hvd_kernel.launch.outcome import told
from hvd_kernel.processes.event_loop import TimerFired
from hvd_kernel.protocol.elastic import Finished, FromWorker, Leaving, Lost, Ready, Registered, Removed

Flow = Iterator[e.Action]


class Driver:
    """Who is in the job, and how that changes. One thread at a time calls ``step``."""

    def __init__(self, settings: DriverSettings) -> None:
        self.settings = settings
        self.has_ended = False
        self._job = JobState(settings)

    @property
    def generation(self) -> int:
        """Of the workers that train; 0: none so far."""
        return self._job.generation

    def step(self, event: e.Event, now: float) -> list[e.Action]:
        """Take an event; return what is to be done, in this order. After an EndJob nothing is.

        Parameters
        ----------
        event
            What has happened.
        now
            When, in seconds of a monotonic clock.
        """
        actions: list[e.Action] = []
        if isinstance(event, TimerFired) and not self._job.timers.knows(event.ticket):
            return actions
        for flow in (self._take(event, now), settle(self._job, now)):
            for action in () if self.has_ended else flow:
                actions.append(action)
                if isinstance(action, e.EndJob):
                    self.has_ended = True
                    break
        return actions

    def _take(self, event: e.Event, now: float) -> Flow:
        """Change what is known."""
        match event:
            case e.HostsFound() | e.DiscoveryFailed():
                yield from self._discovered(event)
            case e.WorkerSaid(number, message) if number in self._job.workers:
                yield from self._hear(self._job.workers[number], message)
            case e.WorkerExited(number) if number in self._job.workers:
                yield from self._exited(self._job.workers[number], event, now)
            case e.WorkerHung(number, why) if number in self._job.workers:
                yield from self._replace(self._job.workers[number], why, now)
            case e.HostLost():
                yield from self._lose(event, now)
            case TimerFired(ticket):
                yield from self._fired(ticket, now)
            case e.EndRequested(why):
                yield e.EndJob("failed", why)

    def _discovered(self, event: e.HostsFound | e.DiscoveryFailed) -> Flow:
        job = self._job
        if isinstance(event, e.HostsFound):
            job.heard, job.warned_of = event.hosts, ""
            job.blacklist.listed([host.name for host in event.hosts])
            job.listed(event.hosts)
            if event.said not in {"", job.discovery_said}:
                job.discovery_said = event.said
                yield e.Say(f"host discovery says: {event.said}")
        elif job.heard is None:
            yield e.EndJob("failed", f"host discovery has failed: {event.why}")
        elif job.warned_of != event.why:
            job.warned_of = event.why
            yield e.Say(f"warning: host discovery has failed, the hosts of before count: {event.why}")

    def _hear(self, worker: WorkerState, message: FromWorker) -> Flow:
        job = self._job
        match message:
            case Ready() if worker.dismissed:
                yield e.SendTo(worker.number, Removed("the job is smaller now"))
            case Ready():
                worker.ready, worker.finished, job.proven = message, False, True
                job.abandoned |= worker in job.members
                job.timers.cancel(For.START, worker=worker.number)
            case Registered(resumes):
                worker.registered, worker.finished = True, False
                job.resumes |= resumes
            case Finished():
                worker.finished = True
            case Leaving() if not (worker.leaving or worker.dismissed):
                worker.leaving = True
                job.retired.add((worker.host, worker.slot))
                yield e.Say(f"{worker.label} was asked to leave")

    def _exited(self, worker: WorkerState, event: e.WorkerExited, now: float) -> Flow:
        job = self._job
        is_member = self._leaves(worker)
        self._forget(worker)
        if worker.dismissed:
            return
        if worker.leaving and not worker.finished:
            return
        if event.status == 0:
            job.retired.add((worker.host, worker.slot))
            job.early += 1
            job.ended_well += is_member or job.stateless
        else:
            yield from self._count(worker, event.why or told(event.status), now, consequence=event.consequence)

    def _leaves(self, worker: WorkerState) -> bool:
        """Take note that one is gone from the generation; return whether it was in it."""
        job = self._job
        is_member = worker in job.members
        job.broken |= is_member
        job.released &= not is_member  # who has been told may wait for another one by now
        job.finishing |= is_member and worker.finished
        return is_member

    def _forget(self, worker: WorkerState) -> None:
        del self._job.workers[worker.number]
        self._job.timers.cancel(For.START, For.LEAVE, worker=worker.number)

    def _replace(self, worker: WorkerState, why: str, now: float) -> Flow:
        """End a worker that does not answer; its slot is used again when the process is gone."""
        yield e.EndWorker(worker.number, 0.0)
        if not worker.dismissed:
            self._leaves(worker)
            worker.dismissed = True
            self._job.timers.cancel(For.START, worker=worker.number)
            yield from self._count(worker, why, now)

    def _count(self, worker: WorkerState, why: str, now: float, *, consequence: bool = False) -> Flow:
        job = self._job
        size = next((host.slots for host in job.hosts if host.name == worker.host), 1)
        out = job.blacklist.fail((worker.host, worker.slot), size, now)
        job.failures.append(WorkerFailure(worker.number, worker.label, why, consequence, worker.joined))
        job.restarts += 1
        yield e.Say(f"{worker.label} has failed: {why}" + (f"; {out}" if out else ""))
        yield from self._check_budget()

    def _check_budget(self) -> Flow:
        job, limit = self._job, self.settings.max_restarts
        if limit is not None and job.restarts > limit and not job.is_finishing:
            yield failed(job, f"{job.restarts} worker(s) have failed, and --max-restarts {limit} is all that may")

    def _lose(self, event: e.HostLost, now: float) -> Flow:
        job = self._job
        there = [each for each in job.workers.values() if each.host == event.host]
        members = [each for each in there if self._leaves(each)]
        yield e.Say(f"{event.host} is lost: {event.why}; {job.blacklist.lose(event.host, now)}")
        for each in there:
            self._forget(each)
        job.in_use.discard(event.host)
        lost = [each for each in there if not (each.dismissed or each.leaving or each.finished)]
        why = f"its host is lost: {event.why}"
        job.failures += [WorkerFailure(each.number, each.label, why, False, each.joined) for each in lost]
        job.restarts += len(lost)
        if event.silent:
            job.cut_off |= {each.number: each.rank for each in members}
        if is_in_minority(job):
            here, there_too = len(job.members), len(job.cut_off)
            yield failed(job, f"the network is cut: {there_too} rank(s) are behind it and {here} here, the minority")
        yield from self._check_budget()

    def _fired(self, ticket: int, now: float) -> Flow:
        job = self._job
        what, number = job.timers.fired(ticket)
        limit = f"{self.settings.patience_s:g} s"
        match what:
            case For.SLOTS:
                job.overdue = True  # where slots are there now, workers in them may still come
            case For.LAST_CALL:
                job.last_call_over = True
            case For.RELEASE:
                job.released = True
                for each in job.training:
                    yield e.SendTo(each.number, Lost(job.generation, reason(job)))
            case For.RESET:
                for each in job.training:
                    yield from self._replace(each, f"it has not come to the reset within {limit}", now)
            case For.START:
                why = f"it has not come to hvd.init() within {self.settings.start_timeout_s:g} s"
                yield from self._replace(job.workers[number], why, now)
            case For.LEAVE:
                yield e.EndWorker(number, self.settings.end_grace_s)
