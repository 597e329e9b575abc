"""``horovod.runner.common.util.hosts``: lists of hosts, and which rank runs where."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any


@dataclass
class HostInfo:
    """A host, and how many ranks it takes."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Read ``host:slots``."""
        return parse_hosts(host_string)[0]


@dataclass
class SlotInfo:
    """A rank's place: its numbers in the job, on its host, and among the ranks of its local rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """Return rank and size, local ones, cross ones, with commas."""
        pairs = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, pairs))


INVALID_SLOT_INFO = SlotInfo("", -1, -1, -1, -1, -1, -1)


def _ours() -> Any:
    return importlib.import_module("hvd_kernel.launch.placement")


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Read ``h1:2,h2:4``."""
    return [HostInfo(host.name, host.slots) for host in _ours().parse(hosts_string)]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Return the hosts of ``h1:2,h2:4`` in order, and the slots of each."""
    found = parse_hosts(hosts)
    return [host.hostname for host in found], {host.hostname: host.slots for host in found}


def parse_host_files(filename: str) -> str:
    """Return ``h1:2,h2:4`` for a file of lines ``h1 slots=2``."""
    return ",".join(f"{host.name}:{host.slots}" for host in _ours().read_hostfile(filename))


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Return the places of as many ranks as there are slots, ``max_num_proc`` at most: host by host.

    Raises
    ------
    ValueError
        There are fewer slots than ``min_num_proc``.
    """
    slots = chain.from_iterable(((host.hostname, local) for local in range(host.slots)) for host in hosts)
    places = list(islice(slots, max_num_proc))
    if len(places) < min_num_proc:
        raise ValueError(f"Requested more processes ({min_num_proc}) than there are available slots ({len(places)})")
    on_host: dict[str, int] = defaultdict(int)
    alike: dict[int, list[str]] = defaultdict(list)
    for name, local in places:
        on_host[name] += 1
        alike[local].append(name)
    return [
        SlotInfo(name, rank, local, alike[local].index(name), len(places), on_host[name], len(alike[local]))
        for rank, (name, local) in enumerate(places)
    ]
