"""Placement of a JobSpec's replicas on this machine, on named hosts, or in an allocation. Pure.

Terms.
  room  the hosts of an allocation, with their slots; empty for this machine
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from hvd_kernel.errors import ConfigError
from hvd_kernel.formatting.units import binary_size, plural
from hvd_kernel.jobs.readers.hostfile import spelled
from hvd_kernel.jobs.spec import JobSpec, Replica, Resources
from hvd_kernel.processes.limits import Limits

HERE = "localhost"


@dataclass(frozen=True)
class Machine:
    """Resources of this machine; ``gpus`` is None if the number is unknown without CUDA."""

    cores: int
    memory: int
    gpus: int | None

    def blind(self) -> Machine:
        """Return a copy with an unknown number of GPUs, for a user who selects the devices."""
        return replace(self, gpus=None)


@dataclass(frozen=True)
class Placed:
    """Ranks on hosts. ``gpus``: number of devices for the ranks on this machine; None: unspecified."""

    hosts: tuple[str, ...]  # of each rank
    limits: tuple[Limits, ...]  # of each rank
    gpus: int | None
    warnings: tuple[str, ...]

    @property
    def devices(self) -> str:
        """The value of ``--gpus`` for the number of devices on this machine."""
        if self.gpus is None or any(host != HERE for host in self.hosts):
            return ""
        return ",".join(map(str, range(self.gpus))) or "none"

    @property
    def spelled(self) -> str:
        """The value of ``-H`` for the hosts."""
        return ",".join(spelled(host, len(list(ranks))) for host, ranks in groupby(self.hosts))


def place(spec: JobSpec, machine: Machine, room: Sequence[tuple[str, int]] = ()) -> Placed:
    """Return the host and the resource limits of each rank.

    Replicas without a host fill the slots of the room in order; without a room they are on this machine.

    Raises
    ------
    ConfigError
        The room has too few slots, or this machine too few GPUs.
    """
    free = iter([host for host, slots in room for _ in range(slots)])
    parts = {id(replica): replica.resources.share(replica.slots) for replica in spec.replicas}
    hosts: list[str] = []
    limits: list[Limits] = []
    local: list[Replica] = []  # of each rank of this machine
    for rank, replica in spec.ranks():
        host = replica.host or (next(free, "") if room else HERE)
        if not host:
            raise ConfigError(
                f"{spec.size} ranks do not fit: the allocation has {plural(rank, 'slot')}: ask it for more."
            )
        hosts.append(host)
        if host == HERE:
            local.append(replica)
        part = parts[id(replica)]
        memory = part.memory_bytes.limit
        limits.append(Limits(part.cpu.limit, None if memory is None else int(memory)))
    gpus = _gpus(local)
    if gpus and machine.gpus is not None and gpus > machine.gpus:
        raise ConfigError(
            f"{spec.kind}: the {plural(len(local), 'rank')} here need {plural(gpus, 'GPU')}, this machine has "
            f"{machine.gpus}: add --gpus none to run them without, or run the job where they are."
        )
    warnings = _crowded([parts[id(replica)] for replica in local], machine)
    return Placed(tuple(hosts), tuple(limits), gpus, (*spec.run_warnings, *warnings))


def _gpus(here: Sequence[Replica]) -> int | None:
    """Return the total number of devices of the ranks' replicas, or None if it is unspecified."""
    by_replica = {(replica.role, replica.index): replica.resources.gpus for replica in here}
    numbers = [gpus for gpus in by_replica.values() if gpus is not None]
    return sum(numbers) if numbers else None


def _crowded(parts: Sequence[Resources], machine: Machine) -> list[str]:
    """Return a warning for each resource of which the ranks request more than this machine has."""
    cores = sum(part.cpu.request or 0 for part in parts)
    memory = sum(part.memory_bytes.request or 0 for part in parts)
    warnings = []
    if math.ceil(cores) > machine.cores:
        warnings.append(f"the ranks request {cores:g} cores, this machine has {machine.cores}: they take turns")
    if memory > machine.memory:
        warnings.append(
            f"the ranks request {binary_size(memory)} of memory, this machine has {binary_size(machine.memory)}"
        )
    return warnings
