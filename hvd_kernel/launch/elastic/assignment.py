"""Assignment of ranks to workers and empty slots. Pure.

The oldest process is rank 0: its state is broadcast to the others. Hosts are in the order of their oldest processes,
and hosts of equal age in the order of discovery. Ranks of one host are adjacent, in the order of their local ranks
except for rank 0.

A worker keeps its slot for life, and its local_rank is that slot if possible: on a host with n ranks, those in slots
below n have their slot's number, and the others get the remaining numbers. So on a host whose slots are all filled each
rank has its slot's number, whichever process has died: no two processes use the GPU of one local rank.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hvd_kernel.launch.placement import Host

Slot = tuple[str, int]
"""A host's name and the slot's number there."""

_FRESH = float("inf")  # age of a process that has been in no generation


class Living(NamedTuple):
    """A worker that may get a rank; ``joined``: the first generation that it was in, 0: none."""

    worker: int
    host: str
    slot: int
    joined: int


class Assigned(NamedTuple):
    """One rank, and the worker that gets it; None: a worker is to be started in this slot."""

    rank: int
    host: str
    slot: int
    worker: int | None
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class Assignment(NamedTuple):
    """The ranks of a generation, and the workers that have no rank in it."""

    ranks: tuple[Assigned, ...]
    leave: tuple[int, ...]

    @property
    def workers(self) -> set[int]:
        """Return the workers that have a rank."""
        return {assigned.worker for assigned in self.ranks if assigned.worker is not None}

    @property
    def empty(self) -> list[Assigned]:
        """Return the ranks for which a worker is to be started."""
        return [assigned for assigned in self.ranks if assigned.worker is None]


def assign(
    living: Sequence[Living], hosts: Sequence[Host], max_np: int | None = None, blocked: Collection[Slot] = ()
) -> Assignment:
    """Return the ranks of the next generation.

    Parameters
    ----------
    living
        Workers, at most one per slot.
    hosts
        In their order, without duplicates. Ranks of one machine are adjacent.
    max_np
        Largest number of ranks.
    blocked
        Slots that are not used.

    Examples
    --------
    >>> assignment = assign([Living(7, "b", 0, joined=1)], [Host("a", 1), Host("b", 1)])
    >>> [(assigned.host, assigned.worker) for assigned in assignment.ranks]
    [('b', 7), ('a', None)]
    """
    holder = {(worker.host, worker.slot): worker for worker in living}
    usable = [(host.name, slot) for host in hosts for slot in range(host.slots) if (host.name, slot) not in blocked]

    def age(slot: Slot) -> float:
        return (holder[slot].joined or _FRESH) if slot in holder else _FRESH

    # sorted() is stable: equal slots stay in the order of the hosts.
    chosen = sorted(usable, key=lambda slot: (age(slot), slot not in holder))[:max_np]
    machine = {host.name: host.machine or host.name for host in hosts}
    slots_of: dict[str, list[Slot]] = {}  # by machine
    for slot in sorted(chosen, key=lambda slot: (age(slot), usable.index(slot))):
        slots_of.setdefault(machine[slot[0]], []).append(slot)
    places = [
        (slot, local, len(slots))
        for number, slots in enumerate(slots_of.values())
        for slot, local in _local_ranks(slots, slots[0] if number == 0 else None)
    ]
    ranks = []
    for rank, (slot, local, size) in enumerate(places):
        machines = [name for name, slots in slots_of.items() if len(slots) > local]  # that have this local rank
        worker = holder[slot].worker if slot in holder else None
        ranks.append(Assigned(rank, *slot, worker, local, size, machines.index(machine[slot[0]]), len(machines)))
    used = set(chosen)
    leave = tuple(worker.worker for worker in living if (worker.host, worker.slot) not in used)
    return Assignment(tuple(ranks), leave)


def _local_ranks(slots: Sequence[Slot], first: Slot | None) -> list[tuple[Slot, int]]:
    """Return the slots of a machine, passed in the order of age, with their local ranks, ``first`` before the others.

    ``first`` is the slot of rank 0 if it is on this machine. If two hosts are on one machine, the older one of two
    slots with the same number keeps it.

    >>> _local_ranks([("a", 2), ("a", 0), ("a", 3)], ("a", 2))
    [(('a', 2), 2), (('a', 0), 0), (('a', 3), 1)]
    """
    keeps: dict[int, Slot] = {}
    for slot in slots:
        if slot[1] < len(slots):
            keeps.setdefault(slot[1], slot)
    free = (number for number in range(len(slots)) if number not in keeps)
    local = {slot: number for number, slot in keeps.items()}
    local |= {slot: next(free) for slot in slots if slot not in local}
    return sorted(local.items(), key=lambda entry: (entry[0] != first, entry[1]))
