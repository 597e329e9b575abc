"""State of an elastic job as its driver knows it: settings, timers, workers, hosts, failures.

Terms.
  member     a worker of the current generation that has not been dismissed
  newcomer   a worker that has not been in any generation
  stateless  no worker is expected to have a training state: before the first generation, and after all were lost
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from hvd_kernel.launch.elastic.assignment import Assignment, Living, Slot, assign
from hvd_kernel.launch.elastic.blacklist import Blacklist
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.event_loop import SetTimer
from hvd_kernel.protocol.elastic import Ready


@dataclass(frozen=True)
class DriverSettings:
    """Sizes, limits and times of one job. Times are in seconds."""

    np: int
    """Slots that must be available before the first start."""
    min_np: int
    """With fewer slots than this the job waits."""
    max_np: int | None = None
    """Slots beyond this stay empty; None: all are used."""
    elastic_timeout_s: float = 600.0
    """Longest wait for enough slots."""
    start_timeout_s: float = 600.0
    """Longest time from the start of a worker to its hvd.init()."""
    patience_s: float = 600.0
    """Longest wait for a member that is missing in a reset."""
    release_s: float = 2.0
    """Time after which a failure is reported to members that have not noticed it, as they wait to meet the others."""
    reset_limit: int | None = None
    """Number of resets; one more ends the job. Then new hosts alone cause no reset."""
    max_restarts: int | None = None
    """Number of failed workers; one more ends the job."""
    cooldown_s: tuple[float, float] | None = None
    """Shortest and longest time for which a slot or host is left out after a failure; None: forever."""
    slot_failures: int | None = None
    """Failures after which a slot is left out; None: 1 with a cooldown, else 3."""
    host_failures: int = 2
    """A host is left out while this many of its slots are (or all of them, if it has fewer)."""
    last_call_s: float = 1.0
    """Time from a change of the hosts until it counts: further changes within it are joined to one."""
    leave_s: float = 30.0
    """Longest time for the cleanup of a dismissed worker."""
    end_grace_s: float = 5.0
    """Time from SIGTERM to SIGKILL."""
    checkpoint: bool = False
    """Workers load their state from files: a job that has lost all of them continues with new ones (as Registered)."""
    seed: int = 0
    """Of the random part of cooldowns."""


class TimerKind(Enum):
    """Purpose of a timer."""

    SLOTS = auto()  # the wait for enough slots
    LAST_CALL = auto()  # the time in which changes of the hosts become one
    COOLDOWN = auto()  # the time until a slot or host is used again
    RELEASE = auto()  # the time in which members may notice a failure themselves
    RESET = auto()  # the wait for members that are missing in a reset
    START = auto()  # the time from the start of a worker to its init
    LEAVE = auto()  # the time in which a dismissed worker must exit


TimerKey = tuple[TimerKind, int]  # and the worker it is for, else -1


class Timers:
    """Running timers by kind and worker; one that was replaced or cancelled has no effect when it fires."""

    def __init__(self) -> None:
        self._tickets: dict[TimerKey, int] = {}
        self._last_ticket = 0

    def set(self, kind: TimerKind, seconds: float, worker: int = -1) -> SetTimer[int]:
        """Start a timer in place of an earlier one of the same kind and worker."""
        self._last_ticket += 1
        self._tickets[kind, worker] = self._last_ticket
        return SetTimer(self._last_ticket, seconds)

    def runs(self, kind: TimerKind, worker: int = -1) -> bool:
        """Return whether such a timer runs."""
        return (kind, worker) in self._tickets

    def knows(self, ticket: int) -> bool:
        """Return whether a ticket belongs to a running timer."""
        return ticket in self._tickets.values()

    def cancel(self, *kinds: TimerKind, worker: int = -1) -> None:
        """Cancel the timers of these kinds."""
        for kind in kinds:
            self._tickets.pop((kind, worker), None)

    def pop(self, ticket: int) -> TimerKey:
        """Remove the timer that has fired and return its kind and worker."""
        key = next(key for key, current in self._tickets.items() if current == ticket)
        del self._tickets[key]
        return key


@dataclass
class WorkerState:
    """One process, as the driver knows it."""

    number: int
    host: str
    slot: int
    joined: int = 0  # the first generation that it was in
    generation: int = 0  # the last one
    rank: int = -1  # in that
    ready: Ready | None = None  # it waits for its place
    registered: bool = False
    finished: bool = False
    leaving: bool = False  # it has got a signal from outside
    dismissed: bool = False  # it got the message to leave, or is being stopped

    @property
    def label(self) -> str:
        """Return its name in sentences."""
        name = f"rank {self.rank}" if self.rank >= 0 else "a new rank"
        return f"{name} ({self.host}, slot {self.slot})"


@dataclass(frozen=True)
class WorkerFailure:
    """A worker that has failed."""

    worker: int
    label: str
    reason: str
    consequence: bool
    joined: int  # the first generation that it was in; 0: none


@dataclass
class Announcement:
    """A change of the hosts: members that leave, slots that get a newcomer, and the workers already notified."""

    leave: frozenset[int]
    join: frozenset[Slot]
    time: float
    notified: set[int] = field(default_factory=set)


@dataclass
class JobState:
    """Everything that the driver knows about a job."""

    settings: DriverSettings
    timers: Timers = field(default_factory=Timers)
    workers: dict[int, WorkerState] = field(default_factory=dict)
    started: int = 0  # workers so far
    generation: int = 0
    # Hosts.
    discovered: tuple[Host, ...] | None = None  # the last answer of discovery
    hosts: tuple[Host, ...] = ()  # the answer that counts
    last_call_over: bool = False
    waits_since: float = 0.0  # when the generation was complete except for newcomers
    order: list[str] = field(default_factory=list)
    retired: set[Slot] = field(default_factory=set)  # slots whose worker has left for good
    in_use: set[str] = field(default_factory=set)  # hosts on which workers have been started
    next_return: float = 0.0  # when the next slot or host that was left out is used again
    overdue: bool = False  # the wait for slots has timed out
    # Since the generation began.
    slots: frozenset[Slot] = frozenset()  # that it was given
    failures: list[WorkerFailure] = field(default_factory=list)
    broken: bool = False  # a member has exited
    abandoned: bool = False  # a member has left the communicator
    released: bool = False  # the failure has been reported to members that had not noticed it
    finishing: bool = False  # a member has exited after its training had returned
    ended_well: int = 0  # members that exited with status 0 of their own accord
    cut_off: dict[int, int] = field(default_factory=dict)  # members on hosts that do not answer -> rank
    announcement: Announcement | None = None
    # Since all workers were lost, or ever.
    resumes: bool = False  # new workers load their state from files
    before: list[WorkerFailure] = field(default_factory=list)  # failures of the workers that were lost
    lost_at: int = 0  # the generation after which the job continued with new workers
    proven: bool = False  # a worker has reached init since
    restarts: int = 0
    early: int = 0  # ranks that have exited before the others
    last_warning: str = ""  # the last failure of discovery
    discovery_stderr: str = ""  # the last output of the discovery script

    def __post_init__(self) -> None:
        limits = self.settings
        random_fraction = random.Random(limits.seed).random  # noqa: S311 - a delay
        self.blacklist = Blacklist(limits.cooldown_s, limits.slot_failures, limits.host_failures, random_fraction)

    @property
    def has_lost(self) -> bool:
        """Return whether a worker of the generation has failed; a failed newcomer does not count."""
        return any(failure.joined for failure in self.failures)

    @property
    def alive(self) -> list[WorkerState]:
        """Return the workers that have not been dismissed."""
        return [worker for worker in self.workers.values() if not worker.dismissed]

    @property
    def members(self) -> list[WorkerState]:
        """Return the members of the current generation, by rank."""
        members = [worker for worker in self.alive if worker.joined and worker.generation == self.generation]
        return sorted(members, key=lambda worker: worker.rank)

    @property
    def waiting(self) -> list[WorkerState]:
        """Return the members that have left their communicator."""
        return [worker for worker in self.members if worker.ready]

    @property
    def training(self) -> list[WorkerState]:
        """Return the members that have neither left the communicator nor returned."""
        return [worker for worker in self.members if not worker.ready and not worker.finished]

    @property
    def stateless(self) -> bool:
        """Return whether no worker is expected to have a training state."""
        return self.generation == self.lost_at

    @property
    def is_finishing(self) -> bool:
        """Return whether a member's training has returned: a worker that exits now has not left early."""
        return self.finishing or any(worker.finished for worker in self.members)

    @property
    def can_resume(self) -> bool:
        """Return whether new workers may continue when no worker is left."""
        return self.resumes or self.settings.checkpoint

    @property
    def needed(self) -> int:
        """Return the number of slots without which no generation begins."""
        return self.settings.min_np if self.generation else self.settings.np

    def update_retired(self, hosts: tuple[Host, ...]) -> None:
        """Forget retired slots that discovery does not list: if they return, they may be used again."""
        slots = {host.name: host.slots for host in hosts}
        self.retired = {(host, slot) for host, slot in self.retired if slot < slots.get(host, 0)}

    def ordered(self, hosts: tuple[Host, ...], now: float) -> tuple[Host, ...]:
        """Return the usable hosts, known ones first in their order; a host that was left out returns last."""
        out = self.blacklist.out(now)
        usable = {host.name: host for host in hosts if host.name not in out}
        names = dict.fromkeys([name for name in self.order if name in usable] + list(usable))
        return tuple(usable[name] for name in names)

    def plan(self, hosts: tuple[Host, ...], now: float) -> Assignment:
        """Return the next generation on these hosts."""
        finished = [worker for worker in self.alive if worker.finished]
        limit = self.settings.max_np
        return assign(
            _living(worker for worker in self.alive if not worker.finished),
            self.ordered(hosts, now),
            None if limit is None else max(0, limit - self.early - len(finished)),
            self.retired
            | {slot for slot in self.blacklist.out(now) if not isinstance(slot, str)}
            | {(worker.host, worker.slot) for worker in self.alive if worker.leaving or worker.finished},
        )

    def plan_of(self, slots: Collection[Slot], now: float) -> Assignment:
        """Return the next generation in these slots alone, each of which has a worker."""
        workers = [worker for worker in self.alive if (worker.host, worker.slot) in slots]
        hosts = self.ordered(self.hosts, now)
        others = {(host.name, slot) for host in hosts for slot in range(host.slots)} - {*slots}
        return assign(_living(workers), hosts, None, others)


def _living(workers: Iterable[WorkerState]) -> list[Living]:
    return [Living(worker.number, worker.host, worker.slot, worker.joined) for worker in workers]
