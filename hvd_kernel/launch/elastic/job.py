"""Elastic job: executes the driver's actions with agents, clocks and pipes, and feeds the resulting events to it.

discovery, agents, workers --events--> driver (driver.py) --actions--> agents, workers, stderr -> outcome
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import IO, Any

from hvd_kernel import tracking
from hvd_kernel.errors import ClusterError
from hvd_kernel.jobs import here
from hvd_kernel.jobs.grace import GracePeriod
from hvd_kernel.launch.agents import Agents
from hvd_kernel.launch.cancellation import Cancellation, JobCancelled, SignalHandlers
from hvd_kernel.launch.elastic import events
from hvd_kernel.launch.elastic.discovery import Feed, HostSource, StaticHosts
from hvd_kernel.launch.elastic.driver import Driver
from hvd_kernel.launch.elastic.hosts import EngineHosts, HostAgent, HostAgents
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.elastic.schedulers import source
from hvd_kernel.launch.elastic.stalls import WorkerStalls
from hvd_kernel.launch.elastic.state import DriverSettings
from hvd_kernel.launch.elastic.workers import Orders, RendezvousPlaces, Streams, WorkerProcess, Workers
from hvd_kernel.launch.exit_report import JobExit, RankExit, recorded
from hvd_kernel.launch.forwarding import StdinForwarder, forwarded
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.line_output import standard
from hvd_kernel.launch.monitor import on_sigquit
from hvd_kernel.launch.outcome import Outcome, failed, is_consequence, shell_status
from hvd_kernel.launch.output_sinks import Write, report_loss, writer
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.event_loop import EventLoop, SetTimer, Timer, TimerFired
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.messages import RankLeft
from hvd_kernel.settings import lookup
from hvd_kernel.settings.lookup import without_launchers

_FAILED_STATUS = 1
_NOT_FOUND = 127  # the shell's status of a command that cannot be started
_HOUSEKEEPING_S = 0.5  # longest time between two checks without a timer of their own
_LATER_S = 10.0  # the driver waits longer by this than the stall monitor, which can report where a missing rank is
_EXIT_S = 30.0  # time for agents to exit after their workers


def launch_elastic(
    job: Job, options: ElasticOptions, *, stdout: IO[Any] | None = None, stderr: IO[Any] | None = None
) -> Outcome:
    """Start the ranks, replace those that fail, add new ones, and leave no process behind.

    Streams and Ctrl-C as in ``job_run.launch``. The number of ranks and the hosts are those of ``options``, not of
    ``job``.

    Raises
    ------
    ConfigError
        The description of the job is not valid.
    ClusterError
        ``timeout_s`` is over.
    JobCancelled
        A signal to hvdrun has cancelled the job.
    """
    env = without_launchers(os.environ) | (job.env or {})
    run_id = tracking.rank_environment(env)
    env |= run_id
    job = replace(job, env=(job.env or {}) | run_id, grace=job.grace or here.grace(env))
    default_out, default_err = standard()
    with recorded(job.exit_report) as record:
        streams = Streams(
            writer(stdout, default_out, record.loss, "stdout"),
            writer(stderr, default_err, record.loss, "stderr"),
            prefix=job.prefix,
            timestamp=job.timestamp,
            folder=job.output_filename,
            digits=len(str((options.max_np or options.np) - 1)),
            most=job.output_max_bytes,
            loss=record.loss,
        )
        outcome = record.outcome = _run(job, options, env, streams, record)
    return outcome


def _run(job: Job, options: ElasticOptions, env: dict[str, str], streams: Streams, record: JobExit) -> Outcome:
    """Start the ranks, and run the job, whose grace period is known, to its end."""
    begun = time.monotonic()
    agents = Agents(streams.err)
    running = ElasticJob(job, options, agents, streams, env)
    with SignalHandlers(agents.loop) as handlers, ExitStack() as at_end:
        at_end.callback(report_loss, record.loss, streams.err)
        at_end.callback(running.wait_for_engine)
        at_end.callback(agents.end)
        at_end.callback(running.close)
        at_end.callback(handlers.ignore)
        record.ranks = running.exits
        handlers.pass_to(running.cancellation.on_signal)
        try:
            with forwarded(agents), on_sigquit(running.stalls.request_report):
                left = None if job.timeout_s is None else begun + job.timeout_s - time.monotonic()
                outcome = running.run(left)
        except KeyboardInterrupt:
            running.stop("interrupted")
            running.finish()
            raise
        if outcome.failed_worker is not None:
            record.first_cause = running.exit_of(outcome.failed_worker)
        return outcome


class ElasticJob:
    """One job, from its first host discovery until all of its processes have exited."""

    def __init__(
        self, job: Job, options: ElasticOptions, agents: Agents, streams: Streams, env: dict[str, str]
    ) -> None:
        self._job, self._agents, self._write = job, agents, streams.err
        assert job.grace is not None
        self._grace = job.grace
        self.cancellation = Cancellation(partial(self.stop, "cancelled"), partial(agents.stop, 0.0))
        self._driver = Driver(_settings(options, env, self._grace))
        self._ended: events.EndJob | None = None
        self._late = False
        self._size = 0  # of the last generation
        self._housekeeping: Timer | None = None
        self._events: deque[events.Event] = deque()
        self._is_stepping = False
        self._workers = Workers(streams)
        self._answers: dict[int, bytes] = {}  # to the job's call, by worker
        self._hosts, self._source = self._hosts_and_source(options, env)
        self._orders = Orders(job, _spares(options, env))
        self._rendezvous_places = RendezvousPlaces(job.network_interface)
        self.stalls = WorkerStalls(self._workers, streams.err, self._feed, env, _hang_s(options, env))
        self._stdin: StdinForwarder | None = None
        self._actions: dict[type[events.Action], Callable[[Any], None]] = {
            events.StartWorker: self._start,
            events.SendTo: self._send_to,
            events.EndWorker: self._end_worker,
            events.ReleaseHost: lambda action: self._hosts.release(action.host),
            SetTimer: self._set_timer,
            events.Say: lambda action: self._print(action.text),
            events.EndJob: self._end,
        }

    def _hosts_and_source(self, options: ElasticOptions, env: Mapping[str, str]) -> tuple[HostAgents, HostSource]:
        """Return the agents of the hosts, and the source of the hosts; with an engine one object is both."""
        job, agents = self._job, self._agents
        patience_s = job.start_timeout_s or lookup.start_timeout(env)
        if job.engine is not None:
            engine = EngineHosts(
                agents,
                self,
                self._feed,
                job.engine,
                job.env or {},
                np=options.np,
                processes=options.max_np or options.np,
                patience_s=patience_s,
            )
            return engine, engine
        hosts = HostAgents(agents, self, port=job.ssh_port, identity=job.ssh_identity_file, patience_s=patience_s)
        return hosts, _source(options, agents.loop, self._feed)

    def run(self, timeout_s: float | None) -> Outcome:
        """Run the loop until the job is over and its workers have exited.

        Raises
        ------
        ClusterError
            The time is over.
        JobCancelled
            A signal to hvdrun has cancelled the job.
        """
        if timeout_s is not None:
            self._agents.loop.call_later(timeout_s, self._timed_out)
        self._keep_house()
        self._source.start()
        while self._ended is None or self._workers.running:
            self._agents.loop.turn()
        self.finish()
        if self._late:
            raise ClusterError("the ranks did not end in time; all of them have been ended.")
        if self.cancellation.number:
            raise _cancelled(self.cancellation, self._workers, self._grace)
        report(self._write, self._ended, self._workers, quiet=self._job.quiet)
        return replace(outcome(self._ended, self._workers), answers=self._answers)

    def stop(self, reason: str) -> None:
        """Stop the workers."""
        self._feed(events.EndRequested(reason))

    def exits(self) -> list[RankExit]:
        """Return the exits of all processes that the job has had, in the order of their start."""
        return [self.exit_of(worker.number) for worker in self._workers]

    def exit_of(self, number: int) -> RankExit:
        """Return the exit of a process."""
        worker = self._workers[number]
        is_other = worker.status is not None and is_consequence(worker.failure())
        host = worker.host.handle.title
        return RankExit(worker.rank, host, worker.pid, worker.status, worker.ended, worker.reason, is_other)

    def finish(self) -> None:
        """Wait until the workers and the agents have exited."""
        self._source.close()
        deadline = time.monotonic() + self._grace.cancelled_s + _EXIT_S
        while self._workers.running and time.monotonic() < deadline:
            self._agents.run_until(lambda: not self._workers.running, deadline - time.monotonic())
        for host in self._hosts.all:
            self._hosts.release(host.name)
        self._agents.run_until(lambda: not self._hosts.all, max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Write the pending output."""
        self._source.close()
        if self._stdin is not None:
            self._stdin.close()
        self._workers.close()

    def wait_for_engine(self) -> None:
        """Wait until the engine has ended, if the job has one."""
        if isinstance(self._hosts, EngineHosts):
            self._hosts.wait_for_engine()

    # Events.

    def _feed(self, event: events.Event) -> None:
        """Pass an event to the driver and execute its actions; events that these cause immediately are queued."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, events.HostsFound):
                    self._orders.update(event.hosts)
                actions = self._driver.step(event, time.monotonic())
                self._rendezvous_places.prepare(actions, self._workers)
                for action in actions:
                    self._actions[type(action)](action)
        finally:
            self._is_stepping = False

    def on_message(self, host: HostAgent, message: m.Message) -> None:
        """Handle a message of a host's agent."""
        worker = self._workers.get(getattr(message, "rank", -1))
        if isinstance(message, m.SparesReady | m.SparesFailed):
            self._print(_spares_text(host.name, message))
        elif worker is not None and worker.host is host:
            self._on_worker(worker, message)

    def _on_worker(self, worker: WorkerProcess, message: m.Message) -> None:
        if worker.status is not None and not isinstance(message, m.Output):  # its descendants may continue to write
            return
        match message:
            case m.Output():
                worker.write(message.stream, message.data)
            case m.InputTaken():
                self._resume()
            case m.FromRank():
                self._on_worker_message(worker, elastic.from_worker(message.data))
            case m.RankState():
                self.stalls.receive(worker, message.state)
                self._keep_house()
            case m.RankStarted() | m.RankKilled():
                worker.record(message)
            case m.Answered():
                self._answers[worker.number] = message.data
            case m.StartFailed():
                self._on_exit(worker, _NOT_FOUND, f"it cannot be started on {worker.host.name}: {message.reason}")
            case m.RankExited():
                self._on_exit(worker, message.status, worker.reason)

    def on_lost(self, host: HostAgent, reason: str, *, silent: bool) -> None:
        """Handle the loss of a host's agent with all workers there; ``silent``: no answer came.

        A worker that has run is gone with its host, as if it were killed. One that could not be started there has the
        status of a launcher's error.
        """
        for worker in [self._workers[number] for number in host.workers]:
            self._record_exit(worker, _FAILED_STATUS if worker.pid is None else -signal.SIGKILL, reason)
        self._feed(events.HostLost(host.name, reason, silent))

    def _on_worker_message(self, worker: WorkerProcess, message: elastic.FromWorker) -> None:
        if isinstance(message, elastic.Logged):
            if self._job.on_logged is not None:
                self._job.on_logged(message.value)
            return
        if isinstance(message, elastic.Sampled):
            if self._job.on_sample is not None:
                self._job.on_sample(message.sample)
            return
        self.stalls.on_message(worker, message)
        self._feed(events.WorkerMessage(worker.number, message))

    def _on_exit(self, worker: WorkerProcess, status: int, reason: str) -> None:
        self._record_exit(worker, status, reason)
        self._feed(events.WorkerExited(worker.number, status, reason, is_consequence(worker.failure())))
        self._hosts.disconnect_if_idle(worker.host)

    def _record_exit(self, worker: WorkerProcess, status: int, reason: str) -> None:
        worker.reason = reason
        worker.end(status)
        worker.host.workers.discard(worker.number)
        self.stalls.on_exit(worker)

    # Actions.

    def _start(self, action: events.StartWorker) -> None:
        host = self._hosts.get(action.host)
        host.workers.add(action.worker)
        worker = self._workers.add(action.worker, host, action.slot)
        host.send(partial(self._order, worker, action))

    def _order(self, worker: WorkerProcess, action: events.StartWorker) -> m.Message:
        """Return the order to start a worker; the first of all workers reads stdin."""
        reads = self._stdin is None and self._job.stdin >= 0
        if reads:
            self._stdin = StdinForwarder(self._job.stdin, worker.host.handle, self._agents.loop, worker.number)
        return self._orders.start(worker, action.assigned, action.size, reads_stdin=reads)

    def _send_to(self, action: events.SendTo) -> None:
        worker, message = self._workers[action.worker], action.message
        if isinstance(message, elastic.Place):
            message = self._rendezvous_places.complete(message)
            self._place(worker, message)
        worker.host.send(lambda: m.ToRank(worker.number, elastic.encode(message)))

    def _place(self, worker: WorkerProcess, place: elastic.Place) -> None:
        worker.place = place
        if len(self._workers.ranks(place.generation)) == place.size:  # the last place of the generation
            self._workers.generation = place.generation
            self.stalls.start_generation()
            self._report_left_ranks(place.size)
            for exited in self._workers:  # the job continues: show the tracebacks of workers that have failed
                if exited.status is not None:
                    exited.outputs[1].release()

    def _report_left_ranks(self, size: int) -> None:
        """Report the ranks that the new generation does not have any more."""
        if self._job.on_sample is not None:
            for rank in range(size, self._size):
                self._job.on_sample(RankLeft(rank))
        self._size = size

    def _end_worker(self, action: events.EndWorker) -> None:
        worker = self._workers[action.worker]
        worker.host.send(lambda: m.StopRank(worker.number, action.grace))

    def _set_timer(self, action: SetTimer[int]) -> None:
        self._agents.loop.call_later(action.seconds, lambda: self._feed(TimerFired(action.ticket)))

    def _end(self, action: events.EndJob) -> None:
        self._ended = action
        self._source.close()
        for host in self._hosts.all:
            if not host.card:  # its agent is not up: none of its workers runs
                self._abandon(host)
        for worker in self._workers.running:  # on SIGTERM alone a worker would leave only at its next commit
            worker.host.send(partial(m.ToRank, worker.number, elastic.encode(elastic.Removed(action.reason))))
        self._agents.stop(self._grace.cancelled_s if self.cancellation.number else self._grace.after_failure_s)

    def _abandon(self, host: HostAgent) -> None:
        host.queued.clear()
        for number in host.workers:
            self._workers[number].end(-signal.SIGTERM)
        host.workers.clear()

    def _print(self, text: str) -> None:
        self._write(f"hvdrun: {text}\n".encode())

    def _resume(self) -> None:
        if self._stdin is not None:
            self._stdin.resume()

    def _keep_house(self) -> None:
        """Release overdue output and run the stall monitor; schedule the next time."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        now = time.monotonic()
        for worker in self._workers:
            if worker.outputs[1].overdue(now):
                worker.outputs[1].release()
        delay = min(self.stalls.tick(now), _HOUSEKEEPING_S)
        self._housekeeping = self._agents.loop.call_later(delay, self._keep_house)

    def _timed_out(self) -> None:
        self._late = True
        self.stop("the time is over")


def _spares(options: ElasticOptions, env: Mapping[str, str]) -> int:
    """Return how many processes are to wait on each host: none by default, unlike in a notebook's cluster."""
    if options.spares is None:
        return int(lookup.value("HVD_SPARES", env)) if env.get("HVD_SPARES") else 0
    return options.spares


def _hang_s(options: ElasticOptions, env: Mapping[str, str]) -> float:
    """Return how long ranks wait in a reset for a missing one."""
    return float(lookup.value("HVD_HANG_TIMEOUT", env)) if options.hang_s is None else options.hang_s


def _spares_text(host: str, message: m.SparesReady | m.SparesFailed) -> str:
    if isinstance(message, m.SparesFailed):
        return f"warning: {host} has fewer spare processes than it was to have: {message.reason}"
    return f"{host} has {message.count} spare process{'es' * (message.count != 1)} ready"


def _source(options: ElasticOptions, loop: EventLoop, feed: Feed) -> HostSource:
    """Return the source of the job's hosts."""
    if options.script:
        return source(options.script, options.slots, options.interval_s, loop, feed)
    return StaticHosts(events.HostsFound(options.hosts), feed)


def _settings(options: ElasticOptions, env: Mapping[str, str], grace: GracePeriod) -> DriverSettings:
    """Return the driver's settings: the options, with defaults from the environment."""
    timeout_s, limit, slot_failures = options.timeout_s, options.reset_limit, options.slot_failures
    if timeout_s is None:
        timeout_s = float(lookup.value("HVD_ELASTIC_TIMEOUT", env))
    if limit is None and (setting := lookup.value("HVD_RESET_LIMIT", env)):
        limit = int(setting)
    if slot_failures is None and (setting := lookup.value("HVD_SLOT_FAILURES", env)):
        slot_failures = int(setting)
    return DriverSettings(
        np=options.np,
        min_np=options.min_np,
        max_np=options.max_np,
        elastic_timeout_s=timeout_s,
        reset_limit=limit,
        max_restarts=options.max_restarts,
        cooldown_s=options.cooldown_s,
        slot_failures=slot_failures,
        host_failures=options.host_failures or int(lookup.value("HVD_HOST_FAILURES", env)),
        patience_s=max(DriverSettings.patience_s, _hang_s(options, env) + _LATER_S),
        last_call_s=0.0 if options.hosts else DriverSettings.last_call_s,  # a fixed list of hosts is complete
        start_timeout_s=max(timeout_s, DriverSettings.start_timeout_s),
        end_grace_s=grace.after_failure_s,
    )


# The end of a job: the failure that has ended it, the last lines on stderr, and the outcome


def report(write: Write, end: events.EndJob, workers: Workers, *, quiet: bool) -> None:
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
        write(_sentence(end, cause).encode())


def _cancelled(signalled: Cancellation, workers: Workers, grace: GracePeriod) -> JobCancelled:
    """Return the error of a cancelled job; write the held tracebacks that do not only report the end of other ranks."""
    for worker in workers:
        if is_consequence(worker.failure()):
            worker.outputs[1].forget()
        worker.outputs[1].release()
    killed = [worker.rank for worker in workers.ranks() if worker.status == -signal.SIGKILL]
    ranks = [rank for rank in killed if rank is not None]
    return signalled.error(ranks, grace.cancelled_s)


def _sentence(end: events.EndJob, cause: WorkerProcess | None) -> str:
    """Return the last line of a job that failed."""
    reason = end.reason.removesuffix(".")
    if cause is None or cause.status is None:
        return f"hvdrun: {reason}; all ranks have ended.\n"
    suffix = f"; {reason}" if reason else ""
    if cause.reason and cause.pid is None and cause.status == _FAILED_STATUS:  # its host cannot be used
        return f"hvdrun: {cause.reason}{suffix}; all ranks have ended.\n"
    return f"hvdrun: {cause.title} {failed(cause.status, cause.reason)}{suffix}; all ranks have ended.\n"


def outcome(end: events.EndJob, workers: Workers) -> Outcome:
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
        return Outcome(codes, status=_FAILED_STATUS, reason=end.reason, workers=numbers)
    failure = cause.failure()
    status = shell_status(failure.code) or _FAILED_STATUS
    rank = ranks.index(cause) if cause.rank is None and cause in ranks else cause.rank
    return Outcome(codes, rank, failure.tail, status, cause.reason or end.reason, numbers, cause.number)


def _first_failed(end: events.EndJob, workers: Workers) -> WorkerProcess | None:
    """Return the worker that the driver blames; if it only reports another rank's exception, the rank that raised.

    The driver decides when the first of them has exited, which may be the one that reports the other's.
    """
    blamed = None if end.worker is None else workers.get(end.worker)
    if blamed is None or not is_consequence(blamed.failure()):
        return blamed
    raised = (worker for worker in workers.ranks() if (worker.status or 0) > 0 and not is_consequence(worker.failure()))
    return next(raised, blamed)
