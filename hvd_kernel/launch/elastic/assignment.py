"""Assignment of ranks to workers and empty slots. Pure.

The oldest process is rank 0: it has the state that others take. Hosts come in the order of their oldest processes, and
between those of one age in the order in which they were found; ranks of one host are beside each other, in the order of
their local ranks but for rank 0.

A worker keeps its slot for life. Its local_rank is that slot wherever it can be: where a host has n ranks, those in the
slots below n have their slot's number, and the others what is left. So on a host whose slots are all filled each rank
has its slot's number, whoever has died: a process that has taken the GPU of its local rank takes that of nobody else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hvd_kernel.launch.placement import Host

Slot = tuple[str, int]
"""A host's name and the slot's number there."""

_FRESH = float("inf")  # the age of a process that has been in no generation


class Living(NamedTuple):
    """A worker that could have a rank; ``joined``: the first generation that it was in, 0: none."""

    worker: int
    host: str
    slot: int
    joined: int


class Assigned(NamedTuple):
    """One rank, and the worker that gets it; None: one that has yet to be started in this slot."""

    rank: int
    host: str
    slot: int
    worker: int | None
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class Assignment(NamedTuple):
    """Who is which rank, and who is none any more."""

    ranks: tuple[Assigned, ...]
    leave: tuple[int, ...]

    @property
    def workers(self) -> set[int]:
        """Those that have a rank."""
        return {each.worker for each in self.ranks if each.worker is not None}

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
        In their order; a host comes once. Ranks of one machine are beside each other.
    max_np
        Ranks that there may be.
    blocked
        Slots that are not used.

    Examples
    --------
    >>> found = assign([Living(7, "b", 0, joined=1)], [Host("a", 1), Host("b", 1)])
    >>> [(each.host, each.worker) for each in found.ranks]
    [('b', 7), ('a', None)]
    """
    holder = {(each.host, each.slot): each for each in living}
    usable = [(host.name, slot) for host in hosts for slot in range(host.slots) if (host.name, slot) not in blocked]

    def age(slot: Slot) -> float:
        return (holder[slot].joined or _FRESH) if slot in holder else _FRESH

    # sorted() is stable: what is equal stays in the order of the hosts.
    chosen = sorted(usable, key=lambda slot: (age(slot), slot not in holder))[:max_np]
    machine = {host.name: host.machine or host.name for host in hosts}
    on_host: dict[str, list[Slot]] = {}  # by machine
    for slot in sorted(chosen, key=lambda slot: (age(slot), usable.index(slot))):
        on_host.setdefault(machine[slot[0]], []).append(slot)
    places = [
        (slot, local, len(slots))
        for number, slots in enumerate(on_host.values())
        for slot, local in _in_order(slots, slots[0] if number == 0 else None)
    ]
    ranks = []
    for rank, (slot, local, size) in enumerate(places):
        having = [host for host, slots in on_host.items() if len(slots) > local]
        worker = holder[slot].worker if slot in holder else None
        ranks.append(Assigned(rank, *slot, worker, local, size, having.index(machine[slot[0]]), len(having)))
    taken = set(chosen)
    return Assignment(tuple(ranks), tuple(each.worker for each in living if (each.host, each.slot) not in taken))


def _in_order(slots: Sequence[Slot], first: Slot | None) -> list[tuple[Slot, int]]:
    """Return a machine's slots, given by age, with their local ranks, in the order of those.

    ``first``: that of rank 0, where it is here. Where two hosts are on one machine, the older slot of a number has it.

    >>> _in_order([("a", 2), ("a", 0), ("a", 3)], ("a", 2))
    [(('a', 2), 2), (('a', 0), 0), (('a', 3), 1)]
    """
    own: dict[int, Slot] = {}
    for slot in slots:
        if slot[1] < len(slots):
            own.setdefault(slot[1], slot)
    free = (number for number in range(len(slots)) if number not in own)
    local = {slot: number for number, slot in own.items()}
    local |= {slot: next(free) for slot in slots if slot not in local}
    return sorted(local.items(), key=lambda one: (one[0] != first, one[1]))
