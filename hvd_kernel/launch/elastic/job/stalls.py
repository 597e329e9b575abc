"""Stall monitor of an elastic job: that of any job for each generation, and ranks that miss a reset or stay stopped.

The others see when a rank is stopped for which they wait. Where nobody does, because it is the only one that is left or
all are stopped, the first of them is glanced at from outside. One that hangs there in its own code cannot be told from
one that works.

Terms.
  reset    the ranks of a generation leave it one by one; all the others wait for one that does not
  missing  a rank that has not left it yet, and lives
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvd_kernel.diagnosis.stall import whereabouts as spoken
from hvd_kernel.launch.elastic.events import Event, WorkerHung
from hvd_kernel.launch.elastic.job.workers import WorkerProcess, Workers
from hvd_kernel.launch.line_output import Write
from hvd_kernel.launch.whereabouts import RankMonitor, whereabouts
from hvd_kernel.processes.channel.messages import AskRank, Message, RankState
from hvd_kernel.processes.rank_channel import decode, encode
from hvd_kernel.protocol.elastic import FromWorker, Ready
from hvd_kernel.settings import lookup

_ASK_S = 1.0  # from one question to a missing rank to the next
_PATIENCE_S = 0.5  # until it is looked at from outside
_UNSEEN_S = 3.0  # without a look at it, after which a rank is not known to have been stopped all the time
_NAMED_S = 10.0  # until it is named
_STOP_ABORT_S = "5"  # the core's own
_CONNECTED = encode({"state": "connected"})


@dataclass(frozen=True)
class _Asked:
    """A worker, as the agent of a rank."""

    worker: WorkerProcess

    def send(self, message: Message) -> None:
        if isinstance(message, AskRank):
            number, patience = self.worker.number, message.patience
            self.worker.host.send(lambda: AskRank(number, patience))


class WorkerStalls:
    """Feed it what is heard of workers; it asks, tells, and says which worker hangs."""

    def __init__(
        self, workers: Workers, write: Write, feed: Callable[[Event], None], env: Mapping[str, str], hang_s: float
    ) -> None:
        options = lookup.engine_options(env)
        self._workers, self._write, self._feed = workers, write, feed
        self._watches = options.get("stall_warning_s") != "0"
        self._stop_abort_s = float(options.get("stop_abort_s", _STOP_ABORT_S))
        self._hang_s = hang_s
        self._monitor: RankMonitor | None = None
        self._wanted = threading.Event()
        self._stopped: dict[int, tuple[float, float]] = {}  # from when to when a worker has been seen stopped
        self._glanced = 0.0
        self._given_up: set[int] = set()
        self._reset: _Reset | None = None

    def want(self) -> None:
        """Have every rank's stack told. Signal handlers."""
        self._wanted.set()

    def placed(self) -> None:
        """Begin anew: the workers have their places in another generation."""
        ranks = self._workers.ranks()
        self._reset = None
        self._monitor = RankMonitor([*map(_Asked, ranks)], 0, len(ranks), self._write, watches=self._watches)
        for rank, worker in enumerate(ranks):
            if worker.reachable:
                self._monitor.receive(RankState(rank, _CONNECTED))

    def receive(self, worker: WorkerProcess, state: bytes) -> None:
        """Take what an agent tells of a worker."""
        said = decode(state)["state"]
        worker.reachable = said != "absent"
        if said == "stopped":
            now = time.monotonic()
            since, last = self._stopped.get(worker.number, (now, now))
            self._stopped[worker.number] = (since if now - last < _UNSEEN_S else now, now)
        else:
            self._stopped.pop(worker.number, None)
        if self._is_current(worker) and worker.rank is not None:
            if self._monitor is not None:
                self._monitor.receive(RankState(worker.rank, state))
            if self._reset is not None and said != "connected":
                self._reset.places[worker.number] = state

    def said(self, worker: WorkerProcess, message: FromWorker) -> None:
        """Take note of a worker that has left its generation."""
        if isinstance(message, Ready) and message.generation and message.generation == self._workers.generation:
            self._reset = self._reset or _Reset(time.monotonic())
            self._reset.came.add(worker.number)

    def ended(self, worker: WorkerProcess) -> None:
        """Take note of a worker's end."""
        worker.reachable = False
        if self._is_current(worker) and worker.rank is not None and self._monitor is not None:
            self._monitor.ended(worker.rank)

    def tick(self, now: float) -> float:
        """Do what is due; return how many seconds there are to the next time, at most."""
        if self._wanted.is_set():
            self._wanted.clear()
            if self._monitor is not None:
                self._monitor.want()
        self._look_for_missing(now)
        self._glance(now)
        return _ASK_S if self._monitor is None else min(_ASK_S, self._monitor.tick(now))

    def _is_current(self, worker: WorkerProcess) -> bool:
        return worker.place is not None and worker.place.generation == self._workers.generation

    def _look_for_missing(self, now: float) -> None:
        reset = self._reset
        if reset is None or now < reset.asked + _ASK_S:
            return
        reset.asked = now
        for worker in self._workers.ranks():
            if worker.status is None and worker.number not in reset.came | self._given_up:
                worker.host.send(lambda number=worker.number: AskRank(number, _PATIENCE_S))  # type: ignore[misc]
                self._judge(reset, worker, now)

    def _glance(self, now: float) -> None:
        """Look whether the first of those is stopped that still run: where it is not, it sees to the others."""
        if now < self._glanced + _ASK_S or not self._stop_abort_s:
            return
        self._glanced = now
        first = next((each for each in self._workers.ranks() if each.status is None and each.reachable), None)
        if first is None or first.number in self._given_up:
            return
        first.host.send(lambda: AskRank(first.number, glance=True))
        if self._stopped_for(first) >= self._stop_abort_s:
            self._give_up(first, self._stopped_text(first))

    def _stopped_for(self, worker: WorkerProcess) -> float:
        since, last = self._stopped.get(worker.number, (0.0, 0.0))
        return last - since

    def _stopped_text(self, worker: WorkerProcess) -> str:
        return f"it has been stopped (SIGSTOP or a debugger) for {self._stopped_for(worker):.0f} s"

    def _judge(self, reset: _Reset, worker: WorkerProcess, now: float) -> None:
        """Name a missing rank after a while, and give it up after another."""
        waited = now - reset.since
        if self._stop_abort_s and self._stopped_for(worker) >= self._stop_abort_s:
            self._give_up(worker, self._stopped_text(worker))
        elif waited >= self._hang_s:
            self._give_up(worker, f"it has not come to a reset for {waited:.0f} s: {reset.where(worker)}")
        elif waited >= _NAMED_S and worker.number not in reset.named:
            reset.named.add(worker.number)
            self._write(f"hvdrun: the ranks wait in a reset for rank {worker.rank}: {reset.where(worker)}\n".encode())

    def _give_up(self, worker: WorkerProcess, why: str) -> None:
        self._given_up.add(worker.number)
        self._feed(WorkerHung(worker.number, why))


class _Reset:
    """One that has begun. ``came``: workers that have left their generation."""

    def __init__(self, since: float) -> None:
        self.since, self.asked = since, since
        self.came: set[int] = set()
        self.named: set[int] = set()
        self.places: dict[int, bytes] = {}

    def where(self, worker: WorkerProcess) -> str:
        """Say where a missing rank is."""
        rank, state = worker.rank or 0, self.places.get(worker.number)
        if state is None:
            return "it gives no answer"
        return spoken({rank: whereabouts(rank, decode(state))})
