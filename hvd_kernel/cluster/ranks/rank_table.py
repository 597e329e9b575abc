"""Ranks of a cluster as a table: which process is each rank, who is dead, on the way, or without what was kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hvd_kernel.cluster.ranks.status import RankStatus


class RankTable:
    """Who is which rank. Changed by one thread; any may read.

    A rank counts as dead until whoever replaces it has met the others, and as bare until it has what was kept.
    """

    def __init__(self, n: int, host: str, engine: str = "") -> None:
        self.n = n
        self.host = host  # this one's name
        self.engine = engine  # whose processes hold the ranks; "": mpiexec and the supervisor do
        self.members: dict[int, RankStatus] = {}
        self.here: set[int] = set()  # on this host
        self.by_launcher = set() if engine else set(range(n))  # they end with mpiexec
        self.registered: set[int] = set()  # the controller knows their engine
        self.dead: set[int] = set()
        self.arrivals: dict[int, RankStatus] = {}  # who is to take a dead rank's place
        self.fallen: set[int] = set()  # arrivals that have died, or that nobody counts on any more
        self.bare: set[int] = set()  # ranks in the place of dead ones that lack what was kept
        self.spares = 0  # processes that could replace a rank at once
        self.detached_name = ""  # the cluster's name, where it outlives this kernel
        self.generation = 0  # how often the ranks have met
        self.leaving: set[int] = set()  # they have been asked to end
        self.identities = n  # the next number for an identity
        self.apart = False  # these ranks may have met in part, or not in this number

    @property
    def everybody(self) -> set[int]:
        """All ranks."""
        return set(range(self.n))

    @property
    def living(self) -> set[int]:
        """Ranks that can be asked: arrivals too."""
        return (self.everybody - self.dead) | (self.arrivals.keys() - self.fallen)

    def process(self, rank: int) -> RankStatus | None:
        """Return who is that rank, or is to be."""
        return self.arrivals.get(rank) or self.members.get(rank)

    def introduce(self, rank: int, said: Mapping[str, str | int]) -> RankStatus:
        """Take over what a rank says of itself."""
        pid, host, device = int(said["pid"]), str(said["host"]), str(said["device"])
        before = self.members.get(rank) or RankStatus(rank, pid, host, alive=True, device=device, identity=rank)
        self.members[rank] = replace(before, pid=pid, host=host, device=device)
        return self.members[rank]

    def introduce_arrival(self, rank: int, said: Mapping[str, str | int]) -> None:
        """Take over what who is to be a rank says of itself: its process may be on any host."""
        pid, host = int(said["pid"]), str(said["host"])
        self.arrivals[rank] = replace(self.arrivals[rank], pid=pid, host=host)

    def make_way(self, ranks: set[int]) -> None:
        """Forget who was to take these ranks' places so far."""
        self.fallen.clear()
        for rank in ranks:
            self.arrivals.pop(rank, None)
        self.registered -= ranks

    def join(self, pids: Mapping[int, int]) -> dict[int, int]:
        """Take note of the processes that are to be dead ranks, and return them; places that are gone are nobody's."""
        taken = {rank: pid for rank, pid in pids.items() if rank in self.dead}
        for rank, pid in taken.items():
            self.arrivals[rank] = RankStatus(rank, pid, self.host, alive=True, device="", identity=self._identity(rank))
        self.fallen -= taken.keys()  # the process before was ended for this one
        return taken

    def _identity(self, rank: int) -> int:
        """Return the identity of the dead one that had this number, or a new one."""
        if before := self.members.get(rank):
            return before.identity
        self.identities += 1
        return self.identities - 1

    def admit(self, devices: Mapping[int, str], ranks: Iterable[int]) -> None:
        """Count arrivals as living: all have met."""
        for rank in ranks:
            self.members[rank] = replace(self.arrivals.pop(rank), device=devices[rank], since=self.generation)
            self.dead.discard(rank)
            self.leaving.discard(rank)
            self.by_launcher.discard(rank)
            self.bare.add(rank)

    def leavers(self, n: int, drop: Iterable[int]) -> set[int]:
        """Return who leaves where n are to stay: those that are named, then the dead, then the youngest."""
        leaving = set(drop)
        youngest = sorted(self.everybody - leaving, key=self._by_age, reverse=True)
        return leaving | set(youngest[: max(0, len(youngest) - n)])

    def resize(self, n: int, leaving: Iterable[int], *, by_age: bool = True) -> dict[int, int]:
        """Have n ranks from here on; return the numbers of who stays and lives, before -> now: by age, if any leave.

        Without ``by_age`` those with the highest numbers leave, and the others keep theirs.

        Places that are new are those of dead ranks. Who was to take a dead rank's place is not waited for any more.
        """
        gone = set(leaving)
        staying = sorted(self.everybody - gone, key=self._by_age if gone and by_age else None)
        numbers = {before: now for now, before in enumerate(staying)}
        self.n, self.apart = n, True
        stay = {numbers[rank]: who for rank, who in self.members.items() if rank in numbers}
        self.members = {rank: replace(who, rank=rank) for rank, who in stay.items()}
        for ranks in (self.here, self.by_launcher, self.dead, self.bare):
            mapped = {numbers[rank] for rank in ranks & numbers.keys()}
            ranks.clear()
            ranks.update(mapped)
        new = set(range(len(staying), n))
        self.dead |= new
        self.here |= new
        self.registered = self.everybody - self.dead
        self.leaving.clear()
        self.arrivals.clear()
        self.fallen.clear()
        return {before: now for before, now in numbers.items() if now not in self.dead}

    def rank_of(self, pid: int) -> int:
        """Return which rank of this host a process is, or is to be; -1: none."""
        found = (rank for rank in self.here if (who := self.process(rank)) is not None and who.pid == pid)
        return next(found, -1)

    def _by_age(self, rank: int) -> tuple[bool, int, int]:
        who = self.members.get(rank)
        return rank in self.dead, who.since if who is not None else self.generation + 1, rank

    def status(self, causes: Mapping[int, str]) -> list[RankStatus]:
        """Return every rank's process; of the dead with what they died of, as far as it is known."""
        return [
            replace(who, alive=rank not in self.dead, why=causes.get(rank, "") if rank in self.dead else "")
            for rank in sorted(self.everybody)
            if (who := self.members.get(rank, RankStatus(rank, 0, self.host, alive=False, device="")))
        ]
