"""Ranks of a cluster as a table: which process is each rank, who is dead, on the way, or without what was kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hvd_kernel.cluster.ranks.status import RankStatus


class Ranks:
    """Who is which rank. Changed by one thread; any may read.

    A rank counts as dead until whoever replaces it has met the others, and as bare until it has what was kept.
    """

    def __init__(self, n: int, host: str) -> None:
        self.n = n
        self.host = host  # this one's name
        self.members: dict[int, RankStatus] = {}
        self.here: set[int] = set()  # on this host
        self.by_launcher = set(range(n))  # they end with mpiexec
        self.registered: set[int] = set()  # the controller knows their engine
        self.dead: set[int] = set()
        self.arrivals: dict[int, RankStatus] = {}  # who is to take a dead rank's place
        self.fallen: set[int] = set()  # arrivals that have died, or that nobody counts on any more
        self.bare: set[int] = set()  # ranks in the place of dead ones that lack what was kept
        self.spares = 0  # processes that could replace a rank at once
        self.kept = ""  # the cluster's name, where it outlives this kernel
        self.generation = 0  # how often the ranks have met since this kernel has them

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
        """Take a rank's own word on who it is."""
        pid, host, device = int(said["pid"]), str(said["host"]), str(said["device"])
        self.members[rank] = RankStatus(rank, pid, host, alive=True, device=device)
        return self.members[rank]

    def make_way(self, ranks: set[int]) -> None:
        """Forget who was to take these ranks' places so far."""
        self.fallen.clear()
        for rank in ranks:
            self.arrivals.pop(rank, None)
        self.registered -= ranks

    def join(self, pids: Mapping[int, int]) -> None:
        """Take note of the processes that are to be these ranks."""
        for rank, pid in pids.items():
            self.arrivals[rank] = RankStatus(rank, pid, self.host, alive=True, device="")
        self.fallen -= pids.keys()  # the process before was ended for this one

    def admit(self, devices: Mapping[int, str], ranks: Iterable[int]) -> None:
        """Count arrivals as living: all have met."""
        for rank in ranks:
            self.members[rank] = replace(self.arrivals.pop(rank), device=devices[rank])
            self.dead.discard(rank)
            self.by_launcher.discard(rank)
            self.bare.add(rank)

    def status(self, causes: Mapping[int, str]) -> list[RankStatus]:
        """Return every rank's process; of the dead with what they died of, as far as it is known."""
        return [
            replace(who, alive=rank not in self.dead, why=causes.get(rank, "") if rank in self.dead else "")
            for rank, who in sorted(self.members.items())
        ]
