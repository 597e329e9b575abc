"""Virtual elastic job in virtual time, on which the actions of a driver work: hosts, discovery, workers that train and fail.

Everything that takes time takes a random one; everything that can fail fails at random, by one seed. What must hold
always is asserted with every action: see ``virtual_checks.py``. Nothing recurs forever: training has an end, so a job
in which nothing more is to come and that has no EndJob is stuck.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hvdtest.virtual_checks import Checks
from hvdtest.virtual_spares import VirtualSpares

from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic.driver import Driver
from hvd_kernel.launch.elastic.state import DriverSettings
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.event_loop import SetTimer, TimerFired
from hvd_kernel.protocol import elastic as p

POINTS = ("importing", "asking", "placed", "meeting", "training", "told", "leaving", "returned", "removed")
"""Where a worker can die or hang."""
STALL_S = 5.0
RENDEZVOUS_S = 30.0
TROUBLE_S = 120.0
"""For so long workers die and hang."""


@dataclass(frozen=True)
class Chances:
    """Probabilities of the events."""

    death: dict[str, float] = field(default_factory=dict)  # at a point
    hang: float = 0.0  # at a point
    seen: float = 0.5  # a hung worker is reported
    well: float = 0.0  # a death is an exit with 0
    leave: float = 0.0  # a worker is requested to leave at a step
    late: float = 0.1  # a message is delayed
    failing_discovery: float = 0.0
    silent: float = 0.5  # of hosts that are lost
    spare_death: float = 0.0  # of a spare, before it is ready


@dataclass(eq=False)
class VirtualWorker:
    """One process."""

    number: int
    host: str
    slot: int
    phase: str = "importing"
    alive: bool = True
    hangs: bool = False
    generation: int = 0
    step: int = 0
    told: bool = False  # hosts have changed
    registered: bool = False
    size: int = 0
    heard_until: float = 0.0  # its last message, and the last to it, have arrived by then
    told_until: float = 0.0


class VirtualJob:
    """Carries out the actions of a driver; ``run`` until no event is left."""

    def __init__(
        self, settings: DriverSettings, hosts: dict[str, int], seed: int, chances: Chances = Chances(), steps: int = 8
    ) -> None:
        self.random = random.Random(seed)
        self.settings, self.chances, self.steps = settings, chances, steps
        self.now = 1e9
        self.calm_from = self.now + TROUBLE_S
        self.driver = Driver(settings)
        self.hosts = dict(hosts)  # what discovery answers
        self.importing_s = (0.2, 5.0)  # of a worker that starts
        self.spare_s = (0.0, 0.05)  # of a former spare
        self.spares = 0  # of each host
        self.taken = 0
        self._spares: dict[str, VirtualSpares] = {}
        self.down: set[str] = set()  # hosts that are gone, whatever it answers
        self.workers: dict[int, VirtualWorker] = {}
        self.said: list[str] = []
        self.end: e.EndJob | None = None
        self.sent: list[tuple[int, p.ToWorker]] = []
        self.starts: list[e.StartWorker] = []
        self.checks = Checks(settings)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._script = 0.0  # what discovery has answered by now

    # Fate.

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._agenda, (self.now + seconds, next(self._numbers), what))

    def run(self, seconds: float = float("inf")) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self._agenda and self._agenda[0][0] <= until and self.end is None:
            self.now, _, what = heapq.heappop(self._agenda)
            what()
        if seconds < float("inf"):
            self.now = until

    def discover(self, hosts: dict[str, int] | None = None) -> None:
        """Have discovery answer, from now on, with these hosts."""
        if hosts is not None:
            self.hosts = dict(hosts)
        if self._script and self.random.random() < self.chances.failing_discovery:
            self.deliver(e.DiscoveryFailed("exit status 1"))
            self.later(1.0, self.discover)
            return
        self._script = self.now
        self.deliver(e.HostsFound(tuple(Host(name, slots) for name, slots in self.hosts.items())))

    def kill(self, worker: VirtualWorker, status: int = -9) -> None:
        """End a worker."""
        if worker.alive:
            worker.alive = False
            self._report(worker, e.WorkerExited(worker.number, status))
            self._break(worker.generation)

    def hang(self, worker: VirtualWorker) -> None:
        """Have a worker do nothing more."""
        worker.hangs = True
        is_seen = self.random.random() < self.chances.seen
        self.later(STALL_S, lambda: self._report_hang(worker, is_seen=is_seen))
        self.later(STALL_S if worker.phase == "training" else RENDEZVOUS_S, lambda: self._break(worker.generation))

    def lose(self, host: str) -> None:
        """Have a host vanish with its workers."""
        self.down.add(host)
        self._forget_spares(host)
        for worker in self.living(host):
            worker.alive = False
            self._break(worker.generation)
        silent = self.random.random() < self.chances.silent
        self.later(self.random.uniform(0.1, 15.0), lambda: self.deliver(e.HostLost(host, "no answer", silent=silent)))

    def living(self, host: str | None = None) -> list[VirtualWorker]:
        """Return the processes that live, of a host or all."""
        return [each for each in self.workers.values() if each.alive and host in {None, each.host}]

    def ranks(self) -> list[tuple[str, int, int]]:
        """Return host, slot and number of those in the current generation, by rank."""
        places = self.checks.places
        found = [
            (places[each.number].rank, each) for each in self.living() if each.generation == self.driver.generation
        ]
        return [(each.host, each.slot, each.number) for _, each in sorted(found, key=lambda one: one[0])]

    # The driver.

    def deliver(self, event: e.Event) -> None:
        """Let the driver handle an event, and execute its actions."""
        if self.end is not None:
            return
        self.checks.hears(event, self.now)
        actions = self.driver.step(event, self.now)
        self.checks.acts(actions, self.now)
        for action in actions:
            self._do(action)

    def _do(self, action: e.Action) -> None:
        match action:
            case e.StartWorker(number, host, slot):
                self.starts.append(action)
                self._start(VirtualWorker(number, host, slot))
            case e.SendTo(number, message):
                self.sent.append((number, message))
                worker = self.workers[number]
                worker.told_until = max(self.now + self._takes(), worker.told_until)
                self.later(worker.told_until - self.now, partial(self._receive, worker, message))
            case e.EndWorker(number, grace):
                worker = self.workers[number]
                after = grace if worker.hangs else self.random.uniform(0.0, grace)
                self.later(after, lambda: self.kill(worker, -9 if worker.hangs else -15))
            case e.ReleaseHost(host):
                self._forget_spares(host)
            case SetTimer(ticket, seconds):
                self.later(seconds, lambda: self.deliver(TimerFired(ticket)))
            case e.Say(text):
                self.said.append(text)
            case e.EndJob():
                self.end = action

    def _takes(self) -> float:
        return (
            self.random.uniform(0.5, 3.0)
            if self.random.random() < self.chances.late
            else self.random.uniform(0.0, 0.01)
        )

    # Workers.

    def _start(self, worker: VirtualWorker) -> None:
        self.workers[worker.number] = worker
        if worker.host in self.down:
            worker.alive = False
            self.later(
                self.random.uniform(0.1, 3.0),
                lambda: self._report(worker, e.WorkerExited(worker.number, 255, "ssh failed")),
            )
            return
        was_spare = worker.host in self._spares and self._spares[worker.host].take()
        self.taken += was_spare
        seconds = self.random.uniform(*(self.spare_s if was_spare else self.importing_s))
        self._go(worker, self.random.uniform(0.0, seconds), partial(self._enter, worker, "importing"))
        self._go(worker, seconds, lambda: self._ask(worker))

    def _learn(self, host: str) -> None:
        """Let a host's agent keep spares, since one of its ranks has reached ``elastic.run``."""
        if host not in self._spares:
            self._spares[host] = VirtualSpares(self.spares, self.chances.spare_death, self.random, self.later)
        self._spares[host].learn()

    def _forget_spares(self, host: str) -> None:
        if spares := self._spares.pop(host, None):
            spares.is_gone = True

    def _go(self, worker: VirtualWorker, seconds: float, what: Callable[[], object]) -> None:
        """Have a worker do something if it still can."""

        def act() -> None:
            if worker.alive and not worker.hangs and worker.host not in self.down:
                what()

        self.later(seconds, act)

    def _enter(self, worker: VirtualWorker, phase: str) -> bool:
        """Move a worker to a point; return whether it survives."""
        worker.phase = phase
        if self.now > self.calm_from:
            return True
        if self.random.random() < self.chances.death.get(phase, 0.0):
            self.kill(worker, 0 if self.random.random() < self.chances.well else self.random.choice([-9, 1]))
        elif self.random.random() < self.chances.hang:
            self.hang(worker)
        return worker.alive and not worker.hangs

    def _say(self, worker: VirtualWorker, message: p.FromWorker) -> None:
        self._report(worker, e.WorkerMessage(worker.number, message))

    def _report(self, worker: VirtualWorker, event: e.Event) -> None:
        """Deliver messages of an agent in order, unless its host is lost."""
        worker.heard_until = max(self.now + self._takes(), worker.heard_until)
        no_start = isinstance(event, e.WorkerExited)

        def arrive() -> None:
            if no_start or worker.host not in self.down:
                self.deliver(event)

        self.later(worker.heard_until - self.now, arrive)

    def _report_hang(self, worker: VirtualWorker, *, is_seen: bool, looks: int = 10) -> None:
        """Report an unresponsive worker if a peer notices it; if all are idle, one does."""
        others = [each for each in self._group(worker.generation) if each.alive and not each.hangs]
        if worker.alive and (is_seen or not others):
            self._report(worker, e.WorkerHung(worker.number, "it is stopped"))
        elif worker.alive and looks:
            self.later(60.0, lambda: self._report_hang(worker, is_seen=False, looks=looks - 1))

    def _ask(self, worker: VirtualWorker, *, failed: bool = False) -> None:
        if self._enter(worker, "asking"):
            worker.told = False
            self._say(worker, p.Ready(worker.generation, failed, step=worker.step, port=worker.number + 1))

    def _receive(self, worker: VirtualWorker, message: p.ToWorker) -> None:
        if not worker.alive or worker.hangs or worker.host in self.down:
            return
        match message:
            case p.Place():
                worker.generation, worker.size = message.generation, message.size
                worker.told = False
                if self._enter(worker, "placed"):
                    self._go(worker, self.random.uniform(0.0, 0.5), lambda: self._meet(worker))
            case p.HostsUpdated():
                worker.told = True
            case p.Lost(generation):
                self._fail(worker, generation)
            case p.Removed() if self._enter(worker, "removed"):
                slow = 2 * self.settings.leave_s if self.random.random() < self.chances.hang else 1.0
                self._go(worker, self.random.uniform(0.0, slow), lambda: self.kill(worker, 0))

    def _group(self, generation: int) -> list[VirtualWorker]:
        return [each for each in self.workers.values() if each.generation == generation]

    def _meet(self, worker: VirtualWorker) -> None:
        if worker.phase != "placed" or not self._enter(worker, "meeting"):
            return
        self._go(worker, RENDEZVOUS_S, partial(self._miss, worker, worker.generation))
        group = self._group(worker.generation)
        here = [each for each in group if each.alive and each.phase == "meeting"]
        if len(here) == worker.size:
            for each in here:
                if self._enter(each, "training") and not each.registered:
                    each.registered = True
                    self._say(each, p.Registered())
                    self._learn(each.host)
            if not all(each.alive for each in here):
                self._break(worker.generation)
            self.later(self.random.uniform(0.1, 2.0), partial(self._tick, worker.generation))

    def _miss(self, worker: VirtualWorker, generation: int) -> None:
        if worker.generation == generation and worker.phase == "meeting":
            self._fail(worker, generation)

    def _tick(self, generation: int) -> None:
        """Train one step of a generation and commit."""
        group = self._group(generation)
        if not group or any(not each.alive or each.hangs or each.phase != "training" for each in group):
            return
        newest = max(each.step for each in group) + 1
        for each in group:
            each.step = newest
            if not self._enter(each, "training"):
                return
        if any(each.told for each in group):
            for each in group:
                each.phase = "told"
                self._go(each, self.random.uniform(0.0, 0.2), partial(self._interrupt, each, generation))
        elif newest >= self.steps:
            for each in group:
                each.phase = "returned"
                self._go(each, self.random.uniform(0.0, 0.5), partial(self._return, each))
        else:
            if self.random.random() < self.chances.leave:
                self._say(self.random.choice(group), p.Leaving())
            self.later(self.random.uniform(0.1, 2.0), partial(self._tick, generation))

    def _interrupt(self, worker: VirtualWorker, generation: int) -> None:
        if worker.generation == generation and worker.phase == "told" and self._enter(worker, "told"):
            self._ask(worker)

    def _return(self, worker: VirtualWorker) -> None:
        self._say(worker, p.Finished())
        if self._enter(worker, "returned"):
            self._go(worker, self.random.uniform(0.0, 1.0), lambda: self.kill(worker, 0))

    def _break(self, generation: int) -> None:
        """Let members of a communicator notice a lost peer, each at its time; workers that have not joined do not."""
        for each in self._group(generation) if generation else ():
            if each.phase in {"training", "told"}:
                self._go(each, self.random.uniform(0.01, 1.0), partial(self._fail, each, generation))

    def _fail(self, worker: VirtualWorker, generation: int) -> None:
        if worker.generation == generation and worker.phase in {"placed", "meeting", "training", "told"}:
            if self._enter(worker, "leaving"):
                worker.step = max(0, worker.step - self.random.choice([0, 0, 0, 1]))  # a commit that it has not seen
                self._ask(worker, failed=True)
            self._break(generation)
