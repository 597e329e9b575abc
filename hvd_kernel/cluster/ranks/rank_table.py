"""Table of a cluster's ranks: the process of each rank, and which ranks are dead, being replaced, or bare.

Also stored with the supervisor of a detached cluster, from which the next kernel restores it.

Terms.
  arrival   a process that is to replace a dead rank; the rank counts as dead until the arrival is in the communicator
  bare      a rank whose replacement has not received the variables that were kept
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import mark


@dataclass(frozen=True)
class RankStatus:
    """One rank's process."""

    rank: int
    pid: int
    host: str
    alive: bool
    device: str
    why: str = ""  # cause of its death, once it is known
    since: int = 0  # the generation in which it joined
    identity: int = -1  # its number at the start, or an unused one; its replacement has the same


def chosen_ranks(ranks: Sequence[int] | None, n: int) -> tuple[int, ...]:
    """Return the chosen ranks of n in order; None chooses all.

    Raises
    ------
    ClusterError
        If the choice is empty, or contains a rank that does not exist.
    """
    chosen = tuple(range(n)) if ranks is None else tuple(sorted(set(ranks)))
    foreign = [rank for rank in chosen if not 0 <= rank < n]
    if foreign or not chosen:
        raise ClusterError(f"no such rank: {foreign or 'an empty choice'}; this cluster has ranks 0 to {n - 1}")
    return chosen


class RankTable:
    """The processes and states of all ranks. Changed by one thread; any may read."""

    def __init__(self, n: int, host: str, engine: str = "") -> None:
        self.n = n
        self.host = host  # name of this host
        self.engine = engine  # engine whose processes hold the ranks; "": mpiexec and the supervisor hold them
        self.members: dict[int, RankStatus] = {}
        self.here: set[int] = set()  # ranks on this host
        self.by_launcher = set() if engine else set(range(n))  # ranks that exit with mpiexec
        self.registered: set[int] = set()  # ranks whose engine has registered with the controller
        self.dead: set[int] = set()
        self.arrivals: dict[int, RankStatus] = {}
        self.fallen: set[int] = set()  # arrivals that have died, or were given up
        self.bare: set[int] = set()
        self.spares = 0  # processes that could replace a rank at once
        self.detached_name = ""  # name of the cluster if it outlives this kernel
        self.generation = 0  # number of communicators formed so far
        self.leaving: set[int] = set()  # ranks that were asked to exit
        self.identities = n  # the next unused identity
        self.apart = False  # the ranks' communicator may be incomplete, or of another size

    @property
    def all(self) -> set[int]:
        """All ranks."""
        return set(range(self.n))

    @property
    def living(self) -> set[int]:
        """Ranks that can be queried, arrivals included."""
        return (self.all - self.dead) | (self.arrivals.keys() - self.fallen)

    def process(self, rank: int) -> RankStatus | None:
        """Return the process of a rank, or of its arrival."""
        return self.arrivals.get(rank) or self.members.get(rank)

    def introduce(self, rank: int, hello: Mapping[str, str | int]) -> RankStatus:
        """Record the process of a rank from its hello."""
        pid, host, device = int(hello["pid"]), str(hello["host"]), str(hello["device"])
        before = self.members.get(rank) or RankStatus(rank, pid, host, alive=True, device=device, identity=rank)
        self.members[rank] = replace(before, pid=pid, host=host, device=device)
        return self.members[rank]

    def introduce_arrival(self, rank: int, hello: Mapping[str, str | int]) -> None:
        """Record the process of an arrival, which may be on any host, from its hello."""
        pid, host = int(hello["pid"]), str(hello["host"])
        self.arrivals[rank] = replace(self.arrivals[rank], pid=pid, host=host)

    def drop_arrivals(self, ranks: set[int]) -> None:
        """Forget the arrivals of these ranks."""
        self.fallen.clear()
        for rank in ranks:
            self.arrivals.pop(rank, None)
        self.registered -= ranks

    def join(self, pids: Mapping[int, int]) -> dict[int, int]:
        """Record the replacement processes by rank and return them; ignore ranks that no longer exist."""
        joining = {rank: pid for rank, pid in pids.items() if rank in self.dead}
        for rank, pid in joining.items():
            self.arrivals[rank] = RankStatus(rank, pid, self.host, alive=True, device="", identity=self._identity(rank))
        self.fallen -= joining.keys()  # the supervisor has stopped the previous arrival for this one
        return joining

    def _identity(self, rank: int) -> int:
        """Return the identity of the dead process of this rank, or a new one."""
        if before := self.members.get(rank):
            return before.identity
        self.identities += 1
        return self.identities - 1

    def admit(self, devices: Mapping[int, str], ranks: Iterable[int]) -> None:
        """Make arrivals members: they are in the communicator."""
        for rank in ranks:
            self.members[rank] = replace(self.arrivals.pop(rank), device=devices[rank], since=self.generation)
            self.dead.discard(rank)
            self.leaving.discard(rank)
            self.by_launcher.discard(rank)
            self.bare.add(rank)

    def leavers(self, n: int, drop: Iterable[int]) -> set[int]:
        """Return the ranks that leave so that n stay: those in ``drop``, then dead ones, then the newest."""
        leaving = set(drop)
        newest = sorted(self.all - leaving, key=self._by_age, reverse=True)
        return leaving | set(newest[: max(0, len(newest) - n)])

    def resize(self, n: int, leaving: Iterable[int]) -> dict[int, int]:
        """Resize the table to n ranks; return the new numbers of living survivors (old -> new), in the same order.

        New ranks count as dead. All arrivals are forgotten.
        """
        staying = sorted(self.all - set(leaving))
        numbers = {old: new for new, old in enumerate(staying)}
        self.n, self.apart = n, True
        stay = {numbers[rank]: process for rank, process in self.members.items() if rank in numbers}
        self.members = {rank: replace(process, rank=rank) for rank, process in stay.items()}
        for ranks in (self.here, self.by_launcher, self.dead, self.bare):
            mapped = {numbers[rank] for rank in ranks & numbers.keys()}
            ranks.clear()
            ranks.update(mapped)
        new = set(range(len(staying), n))
        self.dead |= new
        self.here |= new
        self.registered = self.all - self.dead
        self.leaving.clear()
        self.arrivals.clear()
        self.fallen.clear()
        return {old: new for old, new in numbers.items() if new not in self.dead}

    def rank_of(self, pid: int) -> int:
        """Return the rank of a process of this host, arrivals included; -1 if it is not a rank."""
        ranks = (rank for rank in self.here if (process := self.process(rank)) is not None and process.pid == pid)
        return next(ranks, -1)

    def _by_age(self, rank: int) -> tuple[bool, int, int]:
        process = self.members.get(rank)
        return rank in self.dead, process.since if process is not None else self.generation + 1, rank

    def status(self, causes: Mapping[int, str]) -> list[RankStatus]:
        """Return every rank's process, with the cause of its death if it is dead and the cause is known."""
        return [
            replace(process, alive=rank not in self.dead, why=causes.get(rank, "") if rank in self.dead else "")
            for rank in sorted(self.all)
            if (process := self.members.get(rank, RankStatus(rank, 0, self.host, alive=False, device="")))
        ]


_SETS = ("here", "by_launcher", "bare")


def remembered(spec: ClusterSpec, ranks: RankTable, causes: Mapping[int, str]) -> dict[str, Any]:
    """Return the state that the next kernel needs; ``causes``: of the dead ranks."""
    members = {rank: asdict(process) | {"mark": mark(process.pid)} for rank, process in ranks.members.items()}
    sets = {name: sorted(getattr(ranks, name)) for name in _SETS}
    return {"spec": asdict(spec), "members": members, "causes": dict(causes), "identities": ranks.identities, **sets}


def restored(state: Mapping[str, Any], host: str) -> tuple[ClusterSpec, RankTable, dict[int, str]]:
    """Return spec, table and causes from the stored state; ranks of this host whose pid was reused are dead."""
    spec = msgspec.convert(state["spec"], ClusterSpec)
    ranks = RankTable(spec.n, host)
    for name in _SETS:
        setattr(ranks, name, set(state[name]))
    for rank, fields in ((int(rank), dict(fields)) for rank, fields in state["members"].items()):
        if fields.pop("mark") != mark(fields["pid"]) and rank in ranks.here:
            ranks.dead.add(rank)
        ranks.members[rank] = RankStatus(**fields)
    ranks.identities = state["identities"]
    ranks.generation = max((process.since for process in ranks.members.values()), default=0)
    return spec, ranks, {int(rank): cause for rank, cause in state["causes"].items()}
