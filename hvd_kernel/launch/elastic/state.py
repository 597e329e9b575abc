"""State of an elastic job as its driver knows it: workers, hosts, failures.

Terms.
  member     a worker of the current generation that has not been told to leave
  newcomer   a worker that has been in no generation
  stateless  nobody is expected to have a state: before the first generation, and after all was lost
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from hvd_kernel.launch.elastic.assignment import Assignment, Living, Slot, assign
from hvd_kernel.launch.elastic.blacklist import Blacklist
from hvd_kernel.launch.elastic.settings import DriverSettings
from hvd_kernel.launch.elastic.timers import Timers
from hvd_kernel.launch.placement import Host
from hvd_kernel.protocol.elastic import Ready


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
    leaving: bool = False  # it was asked from outside to end
    dismissed: bool = False  # it was told to end, or is being ended

    @property
    def label(self) -> str:
        """Its name in sentences."""
        who = f"rank {self.rank}" if self.rank >= 0 else "a new rank"
        return f"{who} ({self.host}, slot {self.slot})"


@dataclass(frozen=True)
class WorkerFailure:
    """A worker that has failed."""

    worker: int
    label: str
    why: str
    consequence: bool
    joined: int  # the first generation that it was in; 0: none


@dataclass
class Announcement:
    """A change of the hosts of which workers are told: who goes and comes, and who knows."""

    leave: frozenset[int]
    come: frozenset[Slot]
    time: float
    told: set[int] = field(default_factory=set)


@dataclass
class JobState:
    """What the driver knows."""

    settings: DriverSettings
    timers: Timers = field(default_factory=Timers)
    workers: dict[int, WorkerState] = field(default_factory=dict)
    started: int = 0  # workers so far
    generation: int = 0
    # Hosts.
    heard: tuple[Host, ...] | None = None  # discovery's last answer
    hosts: tuple[Host, ...] = ()  # the answer that counts
    last_call_over: bool = False
    waits_since: float = 0.0  # a generation is complete but for newcomers
    order: list[str] = field(default_factory=list)
    retired: set[Slot] = field(default_factory=set)  # slots whose worker has left for good
    in_use: set[str] = field(default_factory=set)  # hosts that have been started on
    watched: float = 0.0  # when the next of those that were left out is back
    overdue: bool = False  # slots have been waited for as long as may be
    # Since the generation began.
    slots: frozenset[Slot] = frozenset()  # that it was given
    failures: list[WorkerFailure] = field(default_factory=list)
    broken: bool = False  # a member has ended
    abandoned: bool = False  # one has left the communicator
    released: bool = False  # those who had not noticed a failure have been told
    finishing: bool = False  # the training of one that has ended had returned
    ended_well: int = 0  # with status 0, unasked
    cut_off: dict[int, int] = field(default_factory=dict)  # members on hosts that do not answer -> rank
    announcement: Announcement | None = None
    # Since all was lost, or ever.
    resumes: bool = False  # fresh workers begin from files
    before: list[WorkerFailure] = field(default_factory=list)  # of those that were lost
    lost_at: int = 0  # the generation after which the job went on with fresh workers
    proven: bool = False  # one has come to init since
    restarts: int = 0
    early: int = 0  # ranks that have ended before the others
    warned_of: str = ""  # discovery's last failure
    discovery_said: str = ""  # its last words on stderr

    def __post_init__(self) -> None:
        limits = self.settings
        chance = random.Random(limits.seed).random  # noqa: S311 - a delay
        self.blacklist = Blacklist(limits.cooldown_s, limits.slot_failures, limits.host_failures, chance)

    @property
    def has_lost(self) -> bool:
        """Whether one of the generation has failed: what has never been in one is missed by nobody."""
        return any(each.joined for each in self.failures)

    @property
    def alive(self) -> list[WorkerState]:
        """Those that have not been told to end."""
        return [each for each in self.workers.values() if not each.dismissed]

    @property
    def members(self) -> list[WorkerState]:
        """Those of the current generation, by rank."""
        found = [each for each in self.alive if each.joined and each.generation == self.generation]
        return sorted(found, key=lambda each: each.rank)

    @property
    def waiting(self) -> list[WorkerState]:
        """Members that have left their communicator."""
        return [each for each in self.members if each.ready]

    @property
    def training(self) -> list[WorkerState]:
        """Members that have neither left it nor returned."""
        return [each for each in self.members if not each.ready and not each.finished]

    @property
    def stateless(self) -> bool:
        """Whether nobody is expected to have a state."""
        return self.generation == self.lost_at

    @property
    def is_finishing(self) -> bool:
        """Whether the training of one of them has returned: who ends now has not left early."""
        return self.finishing or any(each.finished for each in self.members)

    @property
    def can_resume(self) -> bool:
        """Whether fresh workers may go on where none is left."""
        return self.resumes or self.settings.checkpoint

    @property
    def needed(self) -> int:
        """Slots without which no generation begins."""
        return self.settings.min_np if self.generation else self.settings.np

    def listed(self, hosts: tuple[Host, ...]) -> None:
        """Take note of discovery's answer: a slot that is not in it is another one when it is back."""
        slots = {host.name: host.slots for host in hosts}
        self.retired = {(host, slot) for host, slot in self.retired if slot < slots.get(host, 0)}

    def ordered(self, hosts: tuple[Host, ...], now: float) -> tuple[Host, ...]:
        """Return the hosts that may be used: first those of before, in their order; one that was left out is last."""
        out = self.blacklist.out(now)
        there = {host.name: host for host in hosts if host.name not in out}
        names = dict.fromkeys([name for name in self.order if name in there] + list(there))
        return tuple(there[name] for name in names)

    def plan(self, hosts: tuple[Host, ...], now: float) -> Assignment:
        """Return the next generation on these hosts."""
        through = [each for each in self.alive if each.finished]
        limit = self.settings.max_np
        return assign(
            [Living(each.number, each.host, each.slot, each.joined) for each in self.alive if not each.finished],
            self.ordered(hosts, now),
            None if limit is None else max(0, limit - self.early - len(through)),
            self.retired
            | {each for each in self.blacklist.out(now) if not isinstance(each, str)}
            | {(each.host, each.slot) for each in self.alive if each.leaving or each in through},
        )

    def plan_of(self, slots: Collection[Slot], now: float) -> Assignment:
        """Return the next generation in these slots alone, in each of which there is a worker."""
        there = [each for each in self.alive if (each.host, each.slot) in slots]
        hosts = self.ordered(self.hosts, now)
        others = {(host.name, slot) for host in hosts for slot in range(host.slots)} - {*slots}
        return assign([Living(each.number, each.host, each.slot, each.joined) for each in there], hosts, None, others)
