"""Job specification (JobSpec): steps, hosts and resources of a job. Immutable, validated on construction.

Quantities of resources are numbers; ``size`` and ``quantity`` convert what platforms write, "500m" cores, "1Gi", "256M"
or 4096 megabytes.
Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ ; Slurm's and LSF's sizes are
powers of 1024 with one letter.

Terms.
  replica  a container, pod, task of a scheduler or host, with resources for one rank or more
  slot     room for one rank in a replica
  step     a line that all ranks run, followed by a barrier
  request  resources that a scheduler must reserve; limit: resources that must not be exceeded
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from hvd_kernel.errors import ConfigError
from hvd_kernel.formatting.units import plural

MAX_RANKS = 100_000
"""A larger number is most likely a typo, and its plan would be unreadable."""
NO_COMMAND = "has no command: `job run` needs one"
"""End of a warning that is removed once there is a command."""


class JobError(ConfigError):
    """A job's file, line or environment is invalid. The message has the position, the field, and what is allowed.

    Example: ``polyaxonfile.yml:9:5: environment.replicas.n_workers: 'four' is not a whole number, at least 0.``
    """


class Bounds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request and limit of a resource; None: unspecified."""

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
        """Return the share of one of ``parts`` equal parts."""
        return Bounds(*(None if value is None else value / parts for value in (self.request, self.limit)))


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resources of a replica: cores, bytes of memory, devices. None: unspecified."""

    cpu: Bounds = Bounds()
    memory_bytes: Bounds = Bounds()
    gpus: int | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus < 0:
            raise JobError(f"gpus: {self.gpus} must be at least 0.")

    def share(self, slots: int) -> Resources:
        """Return the share of a rank; devices are shared by ranks if there are fewer devices than slots."""
        gpus = self.gpus if not self.gpus else max(1, self.gpus // slots)
        return Resources(self.cpu.share(slots), self.memory_bytes.share(slots), gpus)


class Replica(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Part of a job with room for ranks.

    Parameters
    ----------
    role, index
        Name within the job, such as ("worker", 2); for a host ("host", 0).
    host
        Host name for ssh or srun; empty if the platform assigns the host later.
    slots
        Maximum number of ranks.
    resources
        Resources of the whole replica, not of each rank.
    command
        Command of the replica in the platform's file, if it differs from the job's steps: ``sleep infinity``.
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
            # ssh would parse a leading dash as an option, and white space would end a host name in a hostfile.
            raise JobError(f"{self.role} {self.index}: {self.host!r} is not a host's name.")


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An environment variable of the ranks; without a value it is copied from the launcher's environment."""

    name: str
    value: str | None = None

    def __post_init__(self) -> None:
        if not self.name or "=" in self.name or "\0" in self.name + (self.value or ""):
            raise JobError(f"{self.name!r} is not an environment variable's name, or its value has a NUL character.")


def variable(text: str) -> Variable:
    """Return the variable of ``NAME=value``, or of ``NAME``."""
    name, equals, value = text.partition("=")
    return Variable(name, value if equals else None)


SECRETS = ("HVD_SECRET_KEY", "HOROVOD_SECRET_KEY")
"""Names of the variables by which the ranks of several nodes authenticate each other."""


class RendezvousAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Address of the rendezvous: rank 0's host, and a port (0: chosen by the launcher)."""

    host: str
    port: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:  # noqa: PLR2004 - ports
            raise JobError(f"port {self.port} must be from 0 to 65535.")


class PlatformField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A setting for a platform's scheduler: an account, a time limit, the tolerations of a pod.

    Parameters
    ----------
    name
        Name that readers and writers of several platforms share, see ``hvd_kernel.jobs.platform_fields``.
    value
        A value of JSON: text, number, list, object; True for a flag without a value.
    source
        Position and spelling in the file, for messages: ``spec.template.spec.tolerations``.
    ignored
        Why the setting has no effect when the job runs without its platform; empty: not worth a warning.
    """

    name: str
    value: Any
    source: str = ""
    ignored: str = ""


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job.

    Parameters
    ----------
    kind
        Format of its source: polyaxonfile, riseml, gradient, mpirun, hostfile, slurm, lsf, pbs, sge, mpijob, ...
    replicas
        Replicas in the order of their ranks; replicas of a host are consecutive.
    steps
        Shell lines, in order. If empty, a command is required to run the job.
    np
        Number of ranks; 0: one for each slot.
    environment
        Environment variables of the ranks.
    name, image, workdir
        Name of the job, container image, and working directory of the steps on the platform.
    rendezvous
        Address of the rendezvous, if the platform defines it.
    interfaces
        Network interfaces; the first existing one is used.
    requires
        Packages that must be installed, such as ``tensorflow==1.5.0``.
    hostfile
        Path of a hostfile that the job's command needs and that does not exist yet: ``/generated/hostfile``.
    mca
        Parameters of Open MPI with their values, for a launch with MPI.
    warnings
        Sentences about ignored settings.
    platform_fields
        Settings that have a meaning for the scheduler of a platform only; writers carry them to their platform.
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
    platform_fields: tuple[PlatformField, ...] = ()

    def __post_init__(self) -> None:
        if not self.replicas:
            raise JobError(f"{self.kind}: the job has no replica and no host: nothing could run.")
        duplicates = [key for key, n in Counter((r.role, r.index) for r in self.replicas).items() if n > 1]
        if duplicates:
            raise JobError(
                f"{self.kind}: {duplicates[0][0]} {duplicates[0][1]} appears twice: give each an index of its own."
            )
        slots = sum(replica.slots for replica in self.replicas)
        if self.np < 0 or self.np > slots:
            raise JobError(f"{self.kind}: np {self.np} ranks do not fit: the replicas have {plural(slots, 'slot')}.")
        if max(self.np, slots if self.np == 0 else 0) > MAX_RANKS:
            raise JobError(f"{self.kind}: {slots} ranks are more than {MAX_RANKS}.")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.np or sum(replica.slots for replica in self.replicas)

    @property
    def run_warnings(self) -> tuple[str, ...]:
        """Sentences about everything in the source that has no effect when the job runs without its platform."""
        fields = (field for field in self.platform_fields if field.ignored)
        return (*self.warnings, *(f"{field.source} is ignored: {field.ignored}" for field in fields))

    def ranks(self) -> Iterator[tuple[int, Replica]]:
        """Yield each rank with its replica, filling the slots of the replicas in order."""
        slots = (replica for replica in self.replicas for _ in range(replica.slots))
        return zip(range(self.size), slots, strict=False)


_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_PARTS = {"n": 10**9, "u": 10**6, "m": 10**3}
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})([numkMGTPE]|[KMGTPE]i)?")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGTP]?)I?B?")
MEBIBYTE = 2**20


def quantity(text: str | float) -> float:
    """Return the number of a Kubernetes quantity: ``quantity("500m") == 0.5``, ``quantity("1Gi") == 2**30``.

    Raises
    ------
    ValueError
        The text is invalid; the message has the format.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return text
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: write 2, 0.5, 500m, 256M or 1Gi")
    number, unit = match[1], match[2] or ""
    if unit in _PARTS:
        return float(number) / _PARTS[unit]  # 9 * 1e-3 is not 0.009
    return float(number) * (_BINARY[unit] if unit in _BINARY else _DECIMAL[unit])


def size(text: str | float, *, unit: int = MEBIBYTE) -> int:
    """Return the bytes of a size in powers of 1024 with a single letter; a plain number is in units of ``unit`` bytes.

    ``size("2G") == 2**31``, ``size(256) == 256 * 2**20``, as in Slurm, LSF, Polyaxon 0.x and RiseML.

    Raises
    ------
    ValueError
        The text is invalid; the message has the format.
    """
    match = None if isinstance(text, bool) else _SIZE.fullmatch(str(text).strip().upper())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory: write 4096, 512M or 4G")
    power = " KMGTP".index(match[2]) if match[2] else 0
    return int(float(match[1]) * (2 ** (10 * power) if power else unit))


def binary(number: float) -> str:
    """Return the exact Kubernetes quantity of bytes: ``binary(2**30) == "1Gi"``, ``binary(1000) == "1000"``."""
    whole = int(number)
    for unit, factor in reversed(_BINARY.items()):
        if whole and whole % factor == 0:
            return f"{whole // factor}{unit}"
    return str(whole)


def cores(number: float) -> str:
    """Return the Kubernetes quantity of cores: ``cores(2.0) == "2"``, ``cores(0.5) == "500m"``."""
    return str(int(number)) if number == int(number) else f"{round(number * 1000)}m"
