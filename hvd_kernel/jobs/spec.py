"""Job specification (JobSpec): what is to run, where, and with which resources. Immutable, checked when it is made.

Terms.
  replica  one container, pod, task of a scheduler or host: a place with resources, for one rank or more
  slot     room for one rank in a replica
  step     a line that all ranks run; all of them wait for each other behind it
  request  what a scheduler must set aside; limit: what may not be exceeded
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import msgspec

from hvd_kernel.errors import ConfigError

MAX_RANKS = 100_000
"""More than that is a slip of the finger, and would be a table that nobody reads."""
NO_COMMAND = "has no command: `job run` needs one"
"""Ends a warning that does not hold once there is one."""


class JobError(ConfigError):
    """A job's file, line or environment cannot be used. The text names the place, the field, and what is allowed.

    Example: ``polyaxonfile.yml:9:5: environment.replicas.n_workers: 'four' is not a whole number, at least 0.``
    """


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A resource's request and limit; None: not said."""

    request: float | None = None
    limit: float | None = None

    def __post_init__(self) -> None:
        for name in ("request", "limit"):
            value = getattr(self, name)
            if value is not None and not (0 <= value < math.inf):
                raise JobError(f"{name}: {value!r} must be a number, at least 0.")
        if self.request is not None and self.limit is not None and self.request > self.limit:
            raise JobError(
                f"request {self.request:g} is above limit {self.limit:g}: raise the limit or lower the request."
            )

    def share(self, parts: int) -> Bounds:
        """Return one of ``parts`` equal shares."""
        return Bounds(*(None if value is None else value / parts for value in (self.request, self.limit)))


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a replica has: cores, bytes of memory, devices. None: not said."""

    cpu: Bounds = Bounds()
    memory_bytes: Bounds = Bounds()
    gpus: int | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus < 0:
            raise JobError(f"gpus: {self.gpus} must be at least 0.")

    def share(self, slots: int) -> Resources:
        """Return what one rank of ``slots`` has; devices are shared where there are fewer than ranks."""
        gpus = self.gpus if not self.gpus else max(1, self.gpus // slots)
        return Resources(self.cpu.share(slots), self.memory_bytes.share(slots), gpus)


class Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place for ranks.

    Parameters
    ----------
    role, index
        Its name within the job, such as ("worker", 2); for a plain host ("host", 0).
    host
        Where it is, as ssh or srun knows it; empty where the platform has yet to choose.
    slots
        How many ranks it takes.
    resources
        Of the whole replica, not of each of its ranks.
    command
        What the platform's file has it run, where that is not the job's steps: ``sleep infinity``.
    """

    role: str = "worker"
    index: int = 0
    host: str = ""
    slots: int = 1
    resources: Resources = Resources()
    command: str = ""

    def __post_init__(self) -> None:
        if not self.role or self.index < 0:
            raise JobError(f"replica {self.role!r} {self.index}: a role and an index of at least 0 are needed.")
        if self.slots < 1:
            raise JobError(f"{self.role} {self.index}: slots: {self.slots} must be at least 1.")
        if self.host.startswith("-") or any(c.isspace() or not c.isprintable() for c in self.host):
            # ssh would take the first for an option, and a hostfile's line end at the second.
            raise JobError(f"{self.role} {self.index}: {self.host!r} is not a host's name.")


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An environment variable of the ranks; without a value it is taken over from whoever starts the job."""

    name: str
    value: str | None = None

    def __post_init__(self) -> None:
        if not self.name or "=" in self.name or "\0" in self.name + (self.value or ""):
            raise JobError(f"{self.name!r} is not an environment variable's name, or its value has a NUL character.")


class RendezvousAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the ranks meet: rank 0's host, and its port (0: the launcher chooses)."""

    host: str
    port: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:  # noqa: PLR2004 - ports
            raise JobError(f"port {self.port} must be from 0 to 65535.")


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job.

    Parameters
    ----------
    kind
        What it was read from: polyaxonfile, riseml, gradient, mpirun, hostfile, slurm, lsf, pbs, sge, mpijob, ...
    replicas
        In the order of their ranks; those of one host stand together.
    steps
        Shell lines, in order. Empty: the file does not say, and whoever runs the job must.
    np
        How many ranks; 0: as many as the replicas have slots.
    environment
        Of the ranks.
    name, image, workdir
        The platform's own: the job's name, the container image, the folder in which steps run.
    rendezvous
        Where the ranks meet, if the platform says so.
    interfaces
        Network interfaces, the first that is there is used.
    requires
        Packages that must be installed, as ``tensorflow==1.5.0``.
    hostfile
        The path of a hostfile that the job's command asks for and that is yet to be made: ``/generated/hostfile``.
    mca
        Parameters of Open MPI with their values, where it is MPI that starts the ranks.
    warnings
        Sentences on what was ignored.
    """

    kind: str
    replicas: tuple[Replica, ...]
    steps: tuple[str, ...] = ()
    np: int = 0
    environment: tuple[Variable, ...] = ()
    name: str = ""
    image: str = ""
    workdir: str = ""
    rendezvous: RendezvousAddress | None = None
    interfaces: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    hostfile: str = ""
    mca: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.replicas:
            raise JobError(f"{self.kind}: the job has no replica and no host: nothing could run.")
        twice = [key for key, n in Counter((r.role, r.index) for r in self.replicas).items() if n > 1]
        if twice:
            raise JobError(f"{self.kind}: {twice[0][0]} {twice[0][1]} appears twice: give each an index of its own.")
        slots = sum(replica.slots for replica in self.replicas)
        if self.np < 0 or self.np > slots:
            raise JobError(f"{self.kind}: np {self.np} ranks do not fit: the replicas have {slots} slot(s).")
        if max(self.np, slots if self.np == 0 else 0) > MAX_RANKS:
            raise JobError(f"{self.kind}: {slots} ranks are more than {MAX_RANKS}.")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.np or sum(replica.slots for replica in self.replicas)

    def ranks(self) -> Iterator[tuple[int, Replica]]:
        """Yield each rank with its replica: replica by replica, as many as each has slots."""
        slots = (replica for replica in self.replicas for _ in range(replica.slots))
        return zip(range(self.size), slots, strict=False)
