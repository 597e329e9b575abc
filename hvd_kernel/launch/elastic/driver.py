"""Elastic driver as a pure state machine: events in, actions out. No clock, no thread, no process, no file.

``step`` takes one event and returns the actions for it; the job (job.py) executes them and reports the results
as further events. An event only changes what the driver knows (state.py); the actions are derived from the whole state
after each event (reset.py), so no order of events is a special case. The same code runs in virtual time, with seeded
faults: tests/unit/elastic/test_elastic_schedules.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from hvd_kernel.formatting.units import plural
from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic.reset import advance, failed, failure_reason, is_in_minority
from hvd_kernel.launch.elastic.state import DriverSettings, JobState, TimerKind, WorkerFailure, WorkerState
from hvd_kernel.launch.outcome import exit_text
from hvd_kernel.processes.event_loop import TimerFired
from hvd_kernel.protocol.elastic import Finished, FromWorker, Leaving, Lost, Ready, Registered, Removed

Flow = Iterator[e.Action]


class Driver:
    """Decides which workers are in the job and which ranks they have. ``step`` is not thread-safe."""

    def __init__(self, settings: DriverSettings) -> None:
        self.settings = settings
        self.has_ended = False
        self._job = JobState(settings)

    @property
    def generation(self) -> int:
        """Return the generation of the workers that train; 0: none has begun."""
        return self._job.generation

    def step(self, event: e.Event, now: float) -> list[e.Action]:
        """Handle an event; return the actions to execute, in this order. After an EndJob there are no more.

        Parameters
        ----------
        event
            What has happened.
        now
            The time, in seconds of a monotonic clock.
        """
        actions: list[e.Action] = []
        if isinstance(event, TimerFired) and not self._job.timers.knows(event.ticket):
            return actions
        for flow in (self._handle(event, now), advance(self._job, now)):
            for action in () if self.has_ended else flow:
                actions.append(action)
                if isinstance(action, e.EndJob):
                    self.has_ended = True
                    break
        return actions

    def _handle(self, event: e.Event, now: float) -> Flow:
        """Change the state for an event."""
        match event:
            case e.HostsFound() | e.DiscoveryFailed():
                yield from self._on_discovery(event)
            case e.WorkerMessage(number, message) if number in self._job.workers:
                yield from self._on_message(self._job.workers[number], message)
            case e.WorkerExited(number) if number in self._job.workers:
                yield from self._on_exit(self._job.workers[number], event, now)
            case e.WorkerHung(number, reason) if number in self._job.workers:
                yield from self._replace(self._job.workers[number], reason, now)
            case e.HostLost():
                yield from self._on_host_lost(event, now)
            case TimerFired(ticket):
                yield from self._on_timer(ticket, now)
            case e.EndRequested(reason):
                yield e.EndJob("failed", reason)

    def _on_discovery(self, event: e.HostsFound | e.DiscoveryFailed) -> Flow:
        job = self._job
        if isinstance(event, e.HostsFound):
            job.discovered, job.last_warning = event.hosts, ""
            job.blacklist.update([host.name for host in event.hosts])
            job.update_retired(event.hosts)
            if event.stderr not in {"", job.discovery_stderr}:
                job.discovery_stderr = event.stderr
                yield e.Say(f"host discovery says: {event.stderr}")
        elif job.discovered is None:
            yield e.EndJob("failed", f"host discovery has failed: {event.reason}")
        elif job.last_warning != event.reason:
            job.last_warning = event.reason
            yield e.Say(f"warning: host discovery has failed, the hosts of before count: {event.reason}")

    def _on_message(self, worker: WorkerState, message: FromWorker) -> Flow:
        job = self._job
        match message:
            case Ready() if worker.dismissed:
                yield e.SendTo(worker.number, Removed("the job is smaller now"))
            case Ready():
                worker.ready, worker.finished, job.proven = message, False, True
                job.abandoned |= worker in job.members
                job.timers.cancel(TimerKind.START, worker=worker.number)
            case Registered(resumes):
                worker.registered, worker.finished = True, False
                job.resumes |= resumes
            case Finished():
                worker.finished = True
            case Leaving() if not (worker.leaving or worker.dismissed):
                worker.leaving = True
                job.retired.add((worker.host, worker.slot))
                yield e.Say(f"{worker.label} was asked to leave")

    def _on_exit(self, worker: WorkerState, event: e.WorkerExited, now: float) -> Flow:
        job = self._job
        is_member = self._leave_generation(worker)
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
            reason = event.reason or exit_text(event.status)
            yield from self._count_failure(worker, reason, now, consequence=event.consequence)

    def _leave_generation(self, worker: WorkerState) -> bool:
        """Record that a worker is gone from the generation; return whether it was in it."""
        job = self._job
        is_member = worker in job.members
        job.broken |= is_member
        job.released &= not is_member  # members that were notified of an earlier failure may wait for this one now
        job.finishing |= is_member and worker.finished
        return is_member

    def _forget(self, worker: WorkerState) -> None:
        del self._job.workers[worker.number]
        self._job.timers.cancel(TimerKind.START, TimerKind.LEAVE, worker=worker.number)

    def _replace(self, worker: WorkerState, reason: str, now: float) -> Flow:
        """Kill a worker that does not answer; its slot is used again when the process is gone."""
        yield e.EndWorker(worker.number, 0.0)
        if not worker.dismissed:
            self._leave_generation(worker)
            worker.dismissed = True
            self._job.timers.cancel(TimerKind.START, worker=worker.number)
            yield from self._count_failure(worker, reason, now)

    def _count_failure(self, worker: WorkerState, reason: str, now: float, *, consequence: bool = False) -> Flow:
        job = self._job
        size = next((host.slots for host in job.hosts if host.name == worker.host), 1)
        exclusion = job.blacklist.fail((worker.host, worker.slot), size, now)
        job.failures.append(WorkerFailure(worker.number, worker.label, reason, consequence, worker.joined))
        job.restarts += 1
        yield e.Say(f"{worker.label} has failed: {reason}" + (f"; {exclusion}" if exclusion else ""))
        yield from self._check_budget()

    def _check_budget(self) -> Flow:
        job, limit = self._job, self.settings.max_restarts
        if limit is not None and job.restarts > limit and not job.is_finishing:
            yield failed(job, f"{job.restarts} worker(s) have failed, and --max-restarts {limit} is all that may")

    def _on_host_lost(self, event: e.HostLost, now: float) -> Flow:
        job = self._job
        workers = [worker for worker in job.workers.values() if worker.host == event.host]
        members = [worker for worker in workers if self._leave_generation(worker)]
        yield e.Say(f"{event.host} is lost: {event.reason}; {job.blacklist.lose(event.host, now)}")
        for worker in workers:
            self._forget(worker)
        job.in_use.discard(event.host)
        lost = [worker for worker in workers if not (worker.dismissed or worker.leaving or worker.finished)]
        reason = f"its host is lost: {event.reason}"
        job.failures += [WorkerFailure(worker.number, worker.label, reason, False, worker.joined) for worker in lost]
        job.restarts += len(lost)
        if event.silent:
            job.cut_off |= {worker.number: worker.rank for worker in members}
        if is_in_minority(job):
            here, cut_off = len(job.members), plural(len(job.cut_off), "rank")
            are = "is" if len(job.cut_off) == 1 else "are"
            yield failed(job, f"the network is cut: {cut_off} {are} behind it and {here} here, the minority")
        yield from self._check_budget()

    def _on_timer(self, ticket: int, now: float) -> Flow:
        job = self._job
        kind, number = job.timers.pop(ticket)
        limit = f"{self.settings.patience_s:g} s"
        match kind:
            case TimerKind.SLOTS:
                job.overdue = True  # if slots are available now, workers may still start in them
            case TimerKind.LAST_CALL:
                job.last_call_over = True
            case TimerKind.RELEASE:
                job.released = True
                for worker in job.training:
                    yield e.SendTo(worker.number, Lost(job.generation, failure_reason(job)))
            case TimerKind.RESET:
                for worker in job.training:
                    yield from self._replace(worker, f"it has not come to the reset within {limit}", now)
            case TimerKind.START:
                reason = f"it has not come to hvd.init() within {self.settings.start_timeout_s:g} s"
                yield from self._replace(job.workers[number], reason, now)
            case TimerKind.LEAVE:
                yield e.EndWorker(number, self.settings.end_grace_s)
