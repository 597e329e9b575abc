"""Placement: a JobSpec's replicas on this machine, on the hosts that it names, or in an allocation. Pure.

Terms.
  room  the hosts of an allocation, with their slots; none: this machine
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.readers.hostfile import spelled
from hvd_kernel.jobs.spec import JobSpec, Replica, Resources
from hvd_kernel.processes.resources.limits import Limits
from hvd_kernel.processes.resources.memory import spoken

HERE = "localhost"


@dataclass(frozen=True)
class Machine:
    """What this machine has; ``gpus`` is None where only CUDA could tell."""

    cores: int
    memory: int
    gpus: int | None

    def blind(self) -> Machine:
        """Return it with devices that nobody counts: the user has said which ones are meant."""
        return replace(self, gpus=None)


@dataclass(frozen=True)
class Placed:
    """Ranks on hosts. ``gpus``: how many devices the ranks of this machine want; None: not said."""

    hosts: tuple[str, ...]  # of each rank
    limits: tuple[Limits, ...]  # of each rank
    gpus: int | None
    warnings: tuple[str, ...]

    @property
    def devices(self) -> str:
        """The choice of devices, as ``--gpus`` takes it, that follows from how many the ranks of this machine have."""
        if self.gpus is None or any(host != HERE for host in self.hosts):
            return ""
        return ",".join(map(str, range(self.gpus))) or "none"

    @property
    def spelled(self) -> str:
        """The hosts as ``-H`` takes them."""
        return ",".join(spelled(host, len(list(ranks))) for host, ranks in groupby(self.hosts))


def place(spec: JobSpec, machine: Machine, room: Sequence[tuple[str, int]] = ()) -> Placed:
    """Return where each rank runs, and what it may use.

    Replicas that name no host fill the room's slots in order; without a room all are on this machine.

    Raises
    ------
    ConfigError
        The room has too few slots, or this machine too few GPUs.
    """
    free = iter([host for host, slots in room for _ in range(slots)])
    parts = {id(replica): replica.resources.share(replica.slots) for replica in spec.replicas}
    hosts: list[str] = []
    limits: list[Limits] = []
    here: list[Replica] = []  # of each rank of this machine
    for rank, replica in spec.ranks():
        host = replica.host or (next(free, "") if room else HERE)
        if not host:
            raise ConfigError(f"{spec.size} ranks do not fit: the allocation has {rank} slot(s): ask it for more.")
        hosts.append(host)
        if host == HERE:
            here.append(replica)
        part = parts[id(replica)]
        memory = part.memory_bytes.limit
        limits.append(Limits(part.cpu.limit, None if memory is None else int(memory)))
    gpus = _gpus(here)
    if gpus and machine.gpus is not None and gpus > machine.gpus:
        raise ConfigError(
            f"{spec.kind}: {len(here)} rank(s) want {gpus} GPU(s), this machine has {machine.gpus}: add --gpus none to "
            "run them without, or run the job where they are."
        )
    told = _crowded([parts[id(replica)] for replica in here], machine)
    return Placed(tuple(hosts), tuple(limits), gpus, (*spec.warnings, *told))


def _gpus(here: Sequence[Replica]) -> int | None:
    """Return how many devices the replicas of these ranks have in all."""
    beside = {(replica.role, replica.index): replica.resources.gpus for replica in here}
    said = [gpus for gpus in beside.values() if gpus is not None]
    return sum(said) if said else None


def _crowded(parts: Sequence[Resources], machine: Machine) -> list[str]:
    """Return a sentence for each resource of which the ranks request more than this machine has."""
    cores = sum(part.cpu.request or 0 for part in parts)
    memory = sum(part.memory_bytes.request or 0 for part in parts)
    told = []
    if math.ceil(cores) > machine.cores:
        told.append(f"the ranks request {cores:g} cores, this machine has {machine.cores}: they take turns")
    if memory > machine.memory:
        told.append(f"the ranks request {spoken(memory)} of memory, this machine has {spoken(machine.memory)}")
    return told
