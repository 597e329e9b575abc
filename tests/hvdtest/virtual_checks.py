"""Invariants of an elastic driver's actions, checked from its messages and actions alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic.state import DriverSettings
from hvd_kernel.protocol import elastic as p


@dataclass
class Checks:
    """Of one driver."""

    settings: DriverSettings
    generation: int = 0
    joined: dict[int, int] = field(default_factory=dict)  # worker -> the first generation that it was in
    places: dict[int, p.Place] = field(default_factory=dict)  # its last one
    where: dict[int, tuple[str, int]] = field(default_factory=dict)  # host and slot of each that is not known as gone
    ready: dict[int, p.Ready] = field(default_factory=dict)  # it waits for an answer
    since: dict[int, float] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    listed: dict[str, int] = field(default_factory=dict)  # host -> most slots that discovery has named
    started: int = 0
    has_ended: bool = False
    returned: bool = False  # the training of one of the current generation

    def hears(self, event: e.Event, now: float) -> None:
        """Record an event before the driver handles it."""
        match event:
            case e.HostsFound(hosts):
                self.listed |= {host.name: max(host.slots, self.listed.get(host.name, 0)) for host in hosts}
            case e.WorkerMessage(number, p.Ready() as ready) if number in self.where:
                self.ready[number] = ready
                self.since[number] = now
            case e.WorkerMessage(number, p.Finished()) if number in self.where:
                self.returned |= self.places[number].generation == self.generation
            case e.WorkerExited(number):
                self._gone(number)
            case e.HostLost(host):
                for number in [number for number, (name, _) in self.where.items() if name == host]:
                    self._gone(number)

    def _gone(self, number: int) -> None:
        self.where.pop(number, None)
        self.ready.pop(number, None)

    def acts(self, actions: list[e.Action], now: float) -> None:
        """Fail if an action breaks an invariant."""
        assert not (self.has_ended and actions), "it acts after its EndJob"
        places = {
            each.worker: each.message
            for each in actions
            if isinstance(each, e.SendTo) and isinstance(each.message, p.Place)
        }
        if places:
            self._begins(places)
        for action in actions:
            match action:
                case e.StartWorker(number, host, slot, assigned, size):
                    assert number == self.started, "a worker's number is used again, or left out"
                    assert slot < self.listed.get(host, 0), f"slot {slot} of {host} was never named"
                    assert (host, slot) not in self.where.values(), f"slot {slot} of {host} is not empty"
                    assert (assigned.host, assigned.slot) == (host, slot), "it is planned elsewhere"
                    assert 0 <= assigned.rank < size, "its rank is outside of the planned generation"
                    assert not self.returned or self.ready, "one is started for a training that has returned"
                    self.started += 1
                    self.where[number] = (host, slot)
                case e.SendTo(number, message):
                    assert number in self.where, f"{message} to a worker that is gone"
                    if isinstance(message, p.Removed):
                        assert number in self.ready, "one is removed that has not asked"
                        self.removed.add(number)
                        del self.ready[number]
                case e.EndWorker(number):
                    assert number in self.where, "one is ended that is gone"
                case e.EndJob():
                    self.has_ended = True
        limit = 2 * (self.settings.elastic_timeout_s + self.settings.start_timeout_s + self.settings.patience_s)
        assert self.has_ended or all(now - self.since[each] < limit for each in self.ready), "somebody waits forever"

    def _begins(self, places: dict[int, p.Place]) -> None:
        settings, first = self.settings, self.generation == 0
        self.generation += 1
        self.returned = False
        by_rank = sorted(places.items(), key=lambda one: one[1].rank)
        ranks = [place.rank for _, place in by_rank]
        size = len(ranks)
        assert ranks == list(range(size)), f"ranks {ranks}"
        assert next(iter(places.values())).rank == 0, "that of rank 0 comes first"
        assert {(place.size, place.generation) for place in places.values()} == {(size, self.generation)}
        assert (settings.np if first else settings.min_np) <= size <= (settings.max_np or size), f"{size} ranks"
        assert settings.reset_limit is None or self.generation - 1 <= settings.reset_limit, "a reset too many"
        assert not self.removed & places.keys(), "a place for one that was removed"
        for number, place in places.items():
            assert number in self.ready, f"worker {number} has not asked for a place"
            last = self.places.get(number)
            assert self.ready[number].generation == (last.generation if last else 0), "it is in another generation"
            assert place.hostname == self.where[number][0]
        self._is_in_order([(number, place) for number, place in by_rank])
        self._has_its_past(by_rank)
        for number, place in places.items():
            self.joined.setdefault(number, self.generation)
            self.places[number] = place
            del self.ready[number]

    def _is_in_order(self, by_rank: list[tuple[int, p.Place]]) -> None:
        ages = [self.joined.get(number, self.generation) for number, _ in by_rank]
        assert ages[0] == min(ages), f"rank 0 is not the oldest: {ages}"
        hosts = [place.hostname for _, place in by_rank]
        assert hosts == [each for host in dict.fromkeys(hosts) for each in hosts if each == host], (
            f"ranks are apart: {hosts}"
        )
        for host in hosts:
            local = [place.local_rank for _, place in by_rank if place.hostname == host]
            assert sorted(local) == [*range(len(local))]
        for rank, (_, place) in enumerate(by_rank):
            assert place.local_size == hosts.count(place.hostname)
            slot = self.where[by_rank[rank][0]][1]
            assert place.local_rank == slot or slot >= place.local_size, f"rank {rank} in slot {slot}"
            having = [host for host in dict.fromkeys(hosts) if hosts.count(host) > place.local_rank]
            assert (place.cross_rank, place.cross_size) == (having.index(place.hostname), len(having))

    def _has_its_past(self, by_rank: list[tuple[int, p.Place]]) -> None:
        old = {rank: number for rank, (number, _) in enumerate(by_rank) if number in self.joined}
        fresh = tuple(rank for rank in range(len(by_rank)) if rank not in old)
        before = tuple(
            self.places[number].rank
            if number in self.joined and self.places[number].generation == self.generation - 1
            else -1
            for number, _ in by_rank
        )
        root = by_rank[0][1].root
        assert {(place.fresh, place.before, place.root) for _, place in by_rank} == {(fresh, before, root)}
        assert by_rank[0][1].port == self.ready[by_rank[0][0]].port
        steps = {rank: self.ready[number].step for rank, number in old.items()}
        best = {rank: (-step, self.joined[old[rank]]) for rank, step in steps.items()}
        assert not best or best[root] == min(best.values()), "others have a newer state"
