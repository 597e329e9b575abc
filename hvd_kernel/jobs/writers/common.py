"""Options of the job writers in addition to the job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from hvd_kernel.jobs import manifests
from hvd_kernel.jobs.spec import NO_COMMAND, SECRETS, JobError, JobSpec, Replica

OPTION_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "secret": ("job", "kustomize"),
        "shm_bytes": ("job", "kustomize", "mpijob", "swarm"),
        "port": ("job", "kustomize", "swarm"),
        "runtime": ("trainjob",),
    }
)
"""Option -> the kinds of file that use it."""


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a written file in addition to the job.

    Parameters
    ----------
    secret
        job, kustomize: value of HVD_SECRET_KEY, such as ``secrets.token_hex(32)``; if empty, the user creates the
        Secret.
    shm_bytes
        job, kustomize, mpijob, swarm: size of /dev/shm, for communication inside a replica; 0: half of the replica's
        memory, or a gibibyte per rank if the memory is unspecified.
    port
        job, kustomize, swarm: port of the rendezvous; 0: that of the job's rendezvous, or 61440.
    runtime
        trainjob: name of a ClusterTrainingRuntime with an mpi policy; empty: the job's, or deepspeed-distributed.
    """

    secret: str = ""
    shm_bytes: int = 0
    port: int = 0
    runtime: str = ""

    def __post_init__(self) -> None:
        if self.shm_bytes < 0:
            raise JobError(f"shm_bytes: {self.shm_bytes} must be at least 0.")
        if not 0 <= self.port <= 65535:  # noqa: PLR2004 - ports
            raise JobError(f"port: {self.port} must be from 0 to 65535.")


PORT = 61440  # above Linux's range of ephemeral ports
_SHOWN = 5


class Written(NamedTuple):
    """The text of a file, and a sentence for each part of the job that it does not have.

    A platform that reads a folder has ``files``, texts by name; ``text`` has their objects in one stream.
    """

    text: str
    losses: tuple[str, ...]
    files: Mapping[str, str] = MappingProxyType({})


class Shape:
    """The replicas with ranks. ``np`` is 0 if ranks fill all slots; ``notes`` list replicas without ranks."""

    def __init__(self, spec: JobSpec) -> None:
        self.size, slots = spec.size, 0
        replicas: list[Replica] = []
        for replica in spec.replicas:
            if slots >= self.size:
                break
            replicas.append(replica)
            slots += replica.slots
        self.replicas = tuple(replicas)
        self.np = 0 if slots == self.size else self.size
        idle = spec.replicas[len(replicas) :]
        self.notes = [f"{_labels(idle)} left out: np {self.size} gives them no rank"] if idle else []

    def alike(self, kind: str) -> Replica:
        """Return the first replica after checking that all are equal.

        Raises
        ------
        JobError
            The replicas differ in slots or resources.
        """
        return alike(self.replicas, kind)

    def filled(self, kind: str, part: str) -> int:
        """Return the number of ranks in each part of the job, if each part starts only its own ranks.

        Raises
        ------
        JobError
            The parts differ, or the last would have fewer ranks.
        """
        slots, parts = self.alike(kind).slots, len(self.replicas)
        if self.np == 0 or parts == 1:
            return self.np or slots
        raise JobError(
            f"np: {self.np} ranks do not fill {parts} {part}s of {slots}: "
            f"request {slots * (parts - 1)} or {slots * parts}."
        )

    def counted(self, part: str) -> str:
        """Return ``8 ranks in 2 pods of 4``."""
        parts, slots = len(self.replicas), self.replicas[0].slots
        suffix = f" of {slots}" if parts > 1 and self.np == 0 else ""
        return f"{self.size} rank{'s'[: self.size > 1]} in {parts} {part}{'s'[: parts > 1]}{suffix}"


def alike(replicas: Sequence[Replica], kind: str) -> Replica:
    """Return the first replica; raise the error of ``Shape.alike`` if another one differs."""
    first = replicas[0]
    for replica in replicas[1:]:
        differ = [name for name in ("slots", "resources") if getattr(replica, name) != getattr(first, name)]
        if differ:
            raise JobError(
                f"{replica.role} {replica.index}: {differ[0]} differ from those of {first.role} {first.index}, and all "
                f"of one {kind} need the same ones: set the largest for all, or write a slurm script, where they may "
                "differ."
            )
    return first


def steps(spec: JobSpec) -> tuple[str, ...]:
    """Return the steps.

    Raises
    ------
    JobError
        There are no steps, or a step cannot be passed to a process.
    """
    if not spec.steps:
        raise JobError("steps: the job has no command: add one.")
    return tuple(whole(step, "steps") for step in spec.steps)


def whole(text: str, field: str) -> str:
    """Return a text after checking that it can be passed to a process.

    Raises
    ------
    JobError
        The text has a NUL character.
    """
    if "\0" in text:
        raise JobError(f"{field}: {text!r} has a NUL character: leave it out.")
    return text


def lost(spec: JobSpec, kind: str) -> list[str]:
    """Return a sentence for each setting that no format supports."""
    hosts = [replica.host for replica in spec.replicas if replica.host]
    commands = [replica.command for replica in spec.replicas if replica.command]
    sentences = {
        f"hosts {_some(hosts)} are left out: {kind} chooses": hosts,
        f"commands of single replicas are left out: {_some(commands)}": commands,
        f"must be installed there: {_some(spec.requires)}": spec.requires,
    }
    warnings = [warning for warning in spec.warnings if not warning.endswith(NO_COMMAND)]
    return [sentence for sentence, holds in sentences.items() if holds] + warnings


def taken_over(spec: JobSpec) -> list[str]:
    """Return a sentence about variables without a value, which a container cannot copy from its launcher."""
    names = [variable.name for variable in spec.environment if variable.value is None]
    return (
        [f"{_some(names)} left as the image has it: a container does not inherit its launcher's environment"]
        if names
        else []
    )


def kept_secret(spec: JobSpec, instead: str) -> list[str]:
    """Return a sentence about secrets in the environment, which are not written to the file."""
    names = [variable.name for variable in spec.environment if variable.name in SECRETS]
    return [f"{_some(names)} of the environment left out: {instead}"] if names else []


def head(does: str, how: Sequence[str], notes: Iterable[str]) -> str:
    """Return the comment at the start of a file: its purpose, how to submit it, and unsupported settings."""
    comments = [f"note: {note}" for note in on_one_line(notes)]
    return "".join(f"# {line}".rstrip() + "\n" for line in (f"{does}. Written by `hvdrun job write`.", *how, *comments))


def on_one_line(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return sentences without line ends and duplicates."""
    return tuple(dict.fromkeys(" ".join(sentence.split()) for sentence in sentences))


def shm_bytes(replica: Replica, options: WriterOptions) -> int:
    """Return the size of /dev/shm."""
    return options.shm_bytes or manifests.shm_bytes(replica)


def mebibytes(number: float, resource: str, notes: list[str]) -> int:
    """Return bytes as mebibytes, rounded up with a note."""
    rounded = math.ceil(number / 2**20)
    if rounded * 2**20 != number:
        notes.append(f"{resource} of {number:.0f} bytes became {rounded} MiB: only whole MiB can be requested")
    return rounded


def _labels(replicas: Sequence[Replica]) -> str:
    return _some([f"{replica.role} {replica.index}" for replica in replicas])


def _some(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:_SHOWN]) + (f" and {len(unique) - _SHOWN} more" if len(unique) > _SHOWN else "")
