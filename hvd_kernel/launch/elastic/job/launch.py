"""Elastic job: carries out what its driver decides, with agents, clocks and pipes, and tells it what comes of that.

discovery, agents, workers --events--> driver (driver.py) --actions--> agents, workers, stderr -> outcome
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import IO, Any

from hvd_kernel import tracking
from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import Agents
from hvd_kernel.launch.elastic import events
from hvd_kernel.launch.elastic.discovery.named_source import source
from hvd_kernel.launch.elastic.discovery.source import Feed, HostSource, StaticHosts
from hvd_kernel.launch.elastic.driver import Driver
from hvd_kernel.launch.elastic.job.engine_hosts import EngineHosts
from hvd_kernel.launch.elastic.job.hosts import HostAgent, HostAgents
from hvd_kernel.launch.elastic.job.options import ElasticOptions
from hvd_kernel.launch.elastic.job.orders import Orders
from hvd_kernel.launch.elastic.job.rendezvous_places import RendezvousPlaces
from hvd_kernel.launch.elastic.job.report import outcome, report
from hvd_kernel.launch.elastic.job.stalls import WorkerStalls
from hvd_kernel.launch.elastic.job.workers import Streams, WorkerProcess, Workers
from hvd_kernel.launch.elastic.settings import DriverSettings
from hvd_kernel.launch.job_run import Job, Outcome
from hvd_kernel.launch.line_output import standard, writer
from hvd_kernel.launch.outcome import is_consequence
from hvd_kernel.launch.signals import forwarded
from hvd_kernel.launch.stdin import StdinForwarder
from hvd_kernel.launch.whereabouts import on_sigquit
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.event_loop import EventLoop, SetTimer, Timer, TimerFired
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.messages import MetricsSample, RankLeft, from_wire
from hvd_kernel.settings import lookup
from hvd_kernel.settings.launchers import without_launchers

_NOT_FOUND = 127  # the shell's status of what cannot be started
_LOOK_S = 0.5  # between two looks at what has no time of its own
_LATER_S = 10.0  # that the driver, which only knows who has not come, waits longer than who can say where a rank is
_GONE_S = 30.0  # that agents may take to end when their workers have


def launch_elastic(
    job: Job, options: ElasticOptions, *, stdout: IO[Any] | None = None, stderr: IO[Any] | None = None
) -> Outcome:
    """Start the ranks, replace those that fail, take in those that come, and leave nothing behind.

    Streams and Ctrl-C as in ``job_run.launch``. Of ``job`` the number of ranks and the hosts count for nothing: the
    options say them.

    Raises
    ------
    ConfigError
        The job cannot be as it is described.
    ClusterError
        ``timeout_s`` is over.
    """
    begun = time.monotonic()
    env = without_launchers(os.environ) | (job.env or {})
    job = replace(job, env=(job.env or {}) | tracking.rank_environment(env))
    default_out, default_err = standard()
    write_err = writer(stderr, default_err)
    agents = Agents(write_err)
    running = ElasticJob(
        job,
        options,
        agents,
        Streams(
            writer(stdout, default_out),
            write_err,
            prefix=job.prefix,
            timestamp=job.timestamp,
            folder=job.output_filename,
            digits=len(str((options.max_np or options.np) - 1)),
        ),
        env,
    )
    try:
        with forwarded(agents), on_sigquit(running.stalls.want):
            left = None if job.timeout_s is None else begun + job.timeout_s - time.monotonic()
            return running.run(left)
    except KeyboardInterrupt:
        running.stop("interrupted")
        running.finish()
        raise
    finally:
        running.close()
        agents.end()
        running.let_go()


class ElasticJob:
    """One job, from its first look for hosts until nothing of it is left."""

    def __init__(
        self, job: Job, options: ElasticOptions, agents: Agents, streams: Streams, env: dict[str, str]
    ) -> None:
        self._job, self._agents, self._write = job, agents, streams.err
        self._driver = Driver(_settings(options, job, env))
        self._ended: events.EndJob | None = None
        self._late = False
        self._size = 0  # of the last generation
        self._looking: Timer | None = None
        self._events: deque[events.Event] = deque()
        self._is_stepping = False
        self._workers = Workers(streams)
        self._answers: dict[int, bytes] = {}  # to the job's call, by worker
        self._hosts, self._source = self._who_has_processes(options, env)
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
            events.Say: lambda action: self._say(action.text),
            events.EndJob: self._end,
        }

    def _who_has_processes(self, options: ElasticOptions, env: Mapping[str, str]) -> tuple[HostAgents, HostSource]:
        """Return who holds the agents, and who says which hosts there are."""
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
        """Carry everything until the job is over and its workers have ended.

        Raises
        ------
        ClusterError
            The time is over.
        """
        if timeout_s is not None:
            self._agents.loop.call_later(timeout_s, self._time_over)
        self._look()
        self._source.start()
        while self._ended is None or self._workers.running:
            self._agents.loop.turn()
        self.finish()
        if self._late:
            raise ClusterError("the ranks did not end in time; all of them have been ended.")
        report(self._write, self._ended, self._workers, quiet=self._job.quiet)
        return replace(outcome(self._ended, self._workers), answers=self._answers)

    def stop(self, why: str) -> None:
        """Have the workers ended."""
        self._feed(events.EndRequested(why))

    def finish(self) -> None:
        """See the end of the workers and of the agents."""
        self._source.close()
        grace = time.monotonic() + self._job.grace_s + _GONE_S
        while self._workers.running and time.monotonic() < grace:
            self._agents.run_until(lambda: not self._workers.running, grace - time.monotonic())
        for host in self._hosts.all:
            self._hosts.release(host.name)
        self._agents.run_until(lambda: not self._hosts.all, max(0.0, grace - time.monotonic()))

    def close(self) -> None:
        """Write what is left of outputs."""
        self._source.close()
        if self._stdin is not None:
            self._stdin.close()
        self._workers.close()

    def let_go(self) -> None:
        """Wait for the engine's end, where one has brought the processes."""
        if isinstance(self._hosts, EngineHosts):
            self._hosts.let_go()

    # Events.

    def _feed(self, event: events.Event) -> None:
        """Tell the driver, and do what it wants; what comes of that at once is told after it."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, events.HostsFound):
                    self._orders.found(event.hosts)
                actions = self._driver.step(event, time.monotonic())
                self._rendezvous_places.expect(actions, self._workers)
                for action in actions:
                    self._actions[type(action)](action)
        finally:
            self._is_stepping = False

    def heard(self, host: HostAgent, message: m.Message) -> None:
        """Take a message of a host's agent."""
        worker = self._workers.get(getattr(message, "rank", -1))
        if isinstance(message, m.SparesReady | m.SparesFailed):
            self._say(_told(host.name, message))
        elif worker is not None and worker.host is host:
            self._heard_of(worker, message)

    def _heard_of(self, worker: WorkerProcess, message: m.Message) -> None:
        if worker.status is not None and not isinstance(message, m.Output):  # what it has left behind may go on writing
            return
        match message:
            case m.Output():
                worker.write(message.stream, message.data)
            case m.InputTaken():
                self._resume()
            case m.RankSaid():
                self._said(worker, elastic.from_worker(message.data))
            case m.RankState():
                self.stalls.receive(worker, message.state)
                self._look()
            case m.RankKilled() | m.Answered():
                self._note(worker, message)
            case m.StartFailed():
                self._exited(worker, _NOT_FOUND, f"it cannot be started on {worker.host.name}: {message.why}")
            case m.RankExited():
                self._exited(worker, message.status, worker.why)

    def _note(self, worker: WorkerProcess, message: m.RankKilled | m.Answered) -> None:
        """Take what is told of a worker right before its end."""
        if isinstance(message, m.Answered):
            self._answers[worker.number] = message.data
        else:
            worker.why = message.why

    def lost(self, host: HostAgent, why: str, *, silent: bool) -> None:
        """Take note that a host's agent is gone, with all workers there; ``silent``: it only does not answer."""
        for worker in [self._workers[number] for number in host.workers]:
            self._end_of(worker, -signal.SIGKILL, why)
        self._feed(events.HostLost(host.name, why, silent))

    def _said(self, worker: WorkerProcess, message: elastic.FromWorker) -> None:
        if isinstance(message, elastic.Logged):
            if self._job.on_logged is not None:
                self._job.on_logged(message.value)
            return
        if isinstance(message, elastic.Sampled):
            if self._job.on_sample is not None:
                self._job.on_sample(from_wire(MetricsSample, message.sample))
            return
        self.stalls.said(worker, message)
        self._feed(events.WorkerSaid(worker.number, message))

    def _exited(self, worker: WorkerProcess, status: int, why: str) -> None:
        self._end_of(worker, status, why)
        self._feed(events.WorkerExited(worker.number, status, why, is_consequence(worker.failure())))
        self._hosts.settle(worker.host)

    def _end_of(self, worker: WorkerProcess, status: int, why: str) -> None:
        worker.why = why
        worker.end(status)
        worker.host.workers.discard(worker.number)
        self.stalls.ended(worker)

    # Actions.

    def _start(self, action: events.StartWorker) -> None:
        host = self._hosts.get(action.host)
        host.workers.add(action.worker)
        worker = self._workers.add(action.worker, host, action.slot)
        host.send(partial(self._order, worker, action))

    def _order(self, worker: WorkerProcess, action: events.StartWorker) -> m.Message:
        """Return what starts a worker; the first of all has what comes on stdin."""
        reads = self._stdin is None and self._job.stdin >= 0
        if reads:
            self._stdin = StdinForwarder(self._job.stdin, worker.host.handle, self._agents.loop, worker.number)
        return self._orders.start(worker, action.assigned, action.size, reads_stdin=reads)

    def _send_to(self, action: events.SendTo) -> None:
        worker, message = self._workers[action.worker], action.message
        if isinstance(message, elastic.Place):
            message = self._rendezvous_places.filled(message)
            self._place(worker, message)
        worker.host.send(lambda: m.TellRank(worker.number, elastic.encode(message)))

    def _place(self, worker: WorkerProcess, place: elastic.Place) -> None:
        worker.place = place
        if len(self._workers.ranks(place.generation)) == place.size:  # the last of them
            self._workers.generation = place.generation
            self.stalls.placed()
            self._tell_who_left(place.size)
            for gone in self._workers:  # the job goes on: what has failed is shown
                if gone.status is not None:
                    gone.outputs[1].release()

    def _tell_who_left(self, size: int) -> None:
        """Tell which ranks the new generation has no more."""
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
            if not host.card:  # its agent has not come up: nothing of it runs
                self._abandon(host)
        for worker in self._workers.running:  # SIGTERM alone is a notice to it, which it acts on at its next commit
            worker.host.send(partial(m.TellRank, worker.number, elastic.encode(elastic.Removed(action.why))))
        self._agents.stop(self._job.grace_s)

    def _abandon(self, host: HostAgent) -> None:
        host.kept.clear()
        for number in host.workers:
            self._workers[number].end(-signal.SIGTERM)
        host.workers.clear()

    def _say(self, text: str) -> None:
        self._write(f"hvdrun: {text}\n".encode())

    def _resume(self) -> None:
        if self._stdin is not None:
            self._stdin.resume()

    def _look(self) -> None:
        """Do what has no time of its own, now and then."""
        if self._looking is not None:
            self._looking.cancel()
        now = time.monotonic()
        for worker in self._workers:
            if worker.outputs[1].overdue(now):
                worker.outputs[1].release()
        self._looking = self._agents.loop.call_later(min(self.stalls.tick(now), _LOOK_S), self._look)

    def _time_over(self) -> None:
        self._late = True
        self.stop("the time is over")


def _spares(options: ElasticOptions, env: Mapping[str, str]) -> int:
    """Return how many processes are to wait on each host. A notebook's cluster keeps some unasked, a job does not."""
    if options.spares is None:
        return int(lookup.value("HVD_SPARES", env)) if env.get("HVD_SPARES") else 0
    return options.spares


def _hang_s(options: ElasticOptions, env: Mapping[str, str]) -> float:
    """Return how long ranks wait in a reset for another one."""
    return float(lookup.value("HVD_HANG_TIMEOUT", env)) if options.hang_s is None else options.hang_s


def _told(host: str, message: m.SparesReady | m.SparesFailed) -> str:
    if isinstance(message, m.SparesFailed):
        return f"warning: {host} has fewer spare processes than it was to have: {message.why}"
    return f"{host} has {message.count} spare process{'es' * (message.count != 1)} ready"


def _source(options: ElasticOptions, loop: EventLoop, feed: Feed) -> HostSource:
    """Return who says which hosts there are."""
    if options.script:
        return source(options.script, options.slots, options.interval_s, loop, feed)
    return StaticHosts(events.HostsFound(options.hosts), feed)


def _settings(options: ElasticOptions, job: Job, env: Mapping[str, str]) -> DriverSettings:
    """Return what the driver goes by: the options, and the environment where they say nothing."""
    timeout_s, limit, slot_failures = options.timeout_s, options.reset_limit, options.slot_failures
    if timeout_s is None:
        timeout_s = float(lookup.value("HVD_ELASTIC_TIMEOUT", env))
    if limit is None and (said := lookup.value("HVD_RESET_LIMIT", env)):
        limit = int(said)
    if slot_failures is None and (said := lookup.value("HVD_SLOT_FAILURES", env)):
        slot_failures = int(said)
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
        last_call_s=0.0 if options.hosts else DriverSettings.last_call_s,  # hosts that stay are all there
        start_timeout_s=max(timeout_s, DriverSettings.start_timeout_s),
        end_grace_s=job.grace_s,
    )
