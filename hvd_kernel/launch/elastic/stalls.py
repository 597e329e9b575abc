"""Stall monitor of an elastic job: a RankMonitor per generation, and ranks that are missing in a reset or stay stopped.

Ranks that wait for a stopped rank notice it. If no rank can, because only one is left or all are stopped, the first one
is checked from outside. There a rank that hangs in its own code cannot be distinguished from one that works.

Terms.
  reset    the ranks of a generation leave it one by one; all others wait for one that does not
  missing  a running rank that has not left the generation yet
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvd_kernel.diagnosis.stall import whereabouts as whereabouts_text
from hvd_kernel.launch.elastic.events import Event, WorkerHung
from hvd_kernel.launch.elastic.workers import WorkerProcess, Workers
from hvd_kernel.launch.monitor import RankMonitor, whereabouts
from hvd_kernel.launch.output_sinks import Write
from hvd_kernel.processes.channel.messages import Message, QueryRank, RankState
from hvd_kernel.processes.rank_channel import decode, encode
from hvd_kernel.protocol.elastic import FromWorker, Ready
from hvd_kernel.settings import lookup

_QUERY_S = 1.0  # between two queries of a missing rank
_PATIENCE_S = 0.5  # for its answer; then its agent inspects it from outside
_UNSEEN_S = 3.0  # gap between two observations after which a rank may have run in between
_REPORT_S = 10.0  # until a missing rank is reported to the user
_STOP_ABORT_S = "5"  # the core's default
_CONNECTED = encode({"state": "connected"})


@dataclass(frozen=True)
class _WorkerAgent:
    """The agent of a worker, addressed by rank."""

    worker: WorkerProcess

    def send(self, message: Message) -> None:
        if isinstance(message, QueryRank):
            number, patience = self.worker.number, message.patience
            self.worker.host.send(lambda: QueryRank(number, patience))


class WorkerStalls:
    """Evaluates the messages and states of workers, queries silent ones, reports stalls, and feeds WorkerHung."""

    def __init__(
        self, workers: Workers, write: Write, feed: Callable[[Event], None], env: Mapping[str, str], hang_s: float
    ) -> None:
        options = lookup.engine_options(env)
        self._workers, self._write, self._feed = workers, write, feed
        self._watches = options.get("stall_warning_s") != "0"
        self._stop_abort_s = float(options.get("stop_abort_s", _STOP_ABORT_S))
        self._hang_s = hang_s
        self._monitor: RankMonitor | None = None
        self._report_requested = threading.Event()
        self._stopped: dict[int, tuple[float, float]] = {}  # first and last time at which a worker was seen stopped
        self._checked_first = 0.0
        self._given_up: set[int] = set()
        self._reset: _Reset | None = None

    def request_report(self) -> None:
        """Request a report on every rank's stack. May be called in a signal handler."""
        self._report_requested.set()

    def start_generation(self) -> None:
        """Restart: the workers have their places in a new generation."""
        ranks = self._workers.ranks()
        self._reset = None
        self._monitor = RankMonitor([*map(_WorkerAgent, ranks)], 0, len(ranks), self._write, watches=self._watches)
        for rank, worker in enumerate(ranks):
            if worker.reachable:
                self._monitor.receive(RankState(rank, _CONNECTED))

    def receive(self, worker: WorkerProcess, state: bytes) -> None:
        """Record the state of a worker that its agent reports."""
        name = decode(state)["state"]
        worker.reachable = name != "absent"
        if name == "stopped":
            now = time.monotonic()
            since, last = self._stopped.get(worker.number, (now, now))
            self._stopped[worker.number] = (since if now - last < _UNSEEN_S else now, now)
        else:
            self._stopped.pop(worker.number, None)
        if self._is_current(worker) and worker.rank is not None:
            if self._monitor is not None:
                self._monitor.receive(RankState(worker.rank, state))
            if self._reset is not None and name != "connected":
                self._reset.states[worker.number] = state

    def on_message(self, worker: WorkerProcess, message: FromWorker) -> None:
        """Record that a worker has left its generation, if the message is its Ready."""
        if isinstance(message, Ready) and message.generation and message.generation == self._workers.generation:
            self._reset = self._reset or _Reset(time.monotonic())
            self._reset.left.add(worker.number)

    def on_exit(self, worker: WorkerProcess) -> None:
        """Record a worker's exit."""
        worker.reachable = False
        if self._is_current(worker) and worker.rank is not None and self._monitor is not None:
            self._monitor.on_exit(worker.rank)

    def tick(self, now: float) -> float:
        """Run the checks that are due; return the number of seconds until the next ones, at most."""
        if self._report_requested.is_set():
            self._report_requested.clear()
            if self._monitor is not None:
                self._monitor.request_report()
        self._query_missing(now)
        self._check_first(now)
        return _QUERY_S if self._monitor is None else min(_QUERY_S, self._monitor.tick(now))

    def _is_current(self, worker: WorkerProcess) -> bool:
        return worker.place is not None and worker.place.generation == self._workers.generation

    def _query_missing(self, now: float) -> None:
        reset = self._reset
        if reset is None or now < reset.queried + _QUERY_S:
            return
        reset.queried = now
        for worker in self._workers.ranks():
            if worker.status is None and worker.number not in reset.left | self._given_up:
                worker.host.send(lambda number=worker.number: QueryRank(number, _PATIENCE_S))  # type: ignore[misc]
                self._judge(reset, worker, now)

    def _check_first(self, now: float) -> None:
        """Check whether the first running rank is stopped; if it is not, it notices stopped peers itself."""
        if now < self._checked_first + _QUERY_S or not self._stop_abort_s:
            return
        self._checked_first = now
        running = (worker for worker in self._workers.ranks() if worker.status is None and worker.reachable)
        first = next(running, None)
        if first is None or first.number in self._given_up:
            return
        first.host.send(lambda: QueryRank(first.number, glance=True))
        if self._stopped_for(first) >= self._stop_abort_s:
            self._give_up(first, self._stopped_text(first))

    def _stopped_for(self, worker: WorkerProcess) -> float:
        since, last = self._stopped.get(worker.number, (0.0, 0.0))
        return last - since

    def _stopped_text(self, worker: WorkerProcess) -> str:
        return f"it has been stopped (SIGSTOP or a debugger) for {self._stopped_for(worker):.0f} s"

    def _judge(self, reset: _Reset, worker: WorkerProcess, now: float) -> None:
        """Report a rank that is missing for a while; give it up when it has been stopped or missing too long."""
        waited = now - reset.since
        if self._stop_abort_s and self._stopped_for(worker) >= self._stop_abort_s:
            self._give_up(worker, self._stopped_text(worker))
        elif waited >= self._hang_s:
            self._give_up(worker, f"it has not come to a reset for {waited:.0f} s: {reset.where(worker)}")
        elif waited >= _REPORT_S and worker.number not in reset.reported:
            reset.reported.add(worker.number)
            self._write(f"hvdrun: the ranks wait in a reset for rank {worker.rank}: {reset.where(worker)}\n".encode())

    def _give_up(self, worker: WorkerProcess, reason: str) -> None:
        self._given_up.add(worker.number)
        self._feed(WorkerHung(worker.number, reason))


class _Reset:
    """A reset that has begun. ``left``: workers that have left their generation."""

    def __init__(self, since: float) -> None:
        self.since, self.queried = since, since
        self.left: set[int] = set()
        self.reported: set[int] = set()
        self.states: dict[int, bytes] = {}

    def where(self, worker: WorkerProcess) -> str:
        """Return a description of where a missing rank is."""
        rank, state = worker.rank or 0, self.states.get(worker.number)
        if state is None:
            return "it gives no answer"
        return whereabouts_text({rank: whereabouts(rank, decode(state))})
