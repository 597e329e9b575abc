"""Kubernetes objects as text: quantities, environment, containers with a sized /dev/shm, YAML."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]

from hvd_kernel.jobs import labels
from hvd_kernel.jobs.quantities import binary, cores
from hvd_kernel.jobs.spec import Bounds, JobError, JobSpec, Resources
from hvd_kernel.jobs.writers.common import SECRETS, whole

GPU = "nvidia.com/gpu"
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*", re.ASCII)
_DOLLARS = re.compile(r"\$+(?=\()|\$\$+")
_SAFE = re.compile(r"[A-Za-z/][\w ./:=,@+-]*[\w/.]", re.ASCII)
_MILLI = 1000
_SHM = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - it is the container's own


def named(spec: JobSpec, last: str, what: str) -> str:
    """Return the job's name, checked with what the platform appends for the name of its last pod.

    Raises
    ------
    JobError
        Kubernetes refuses the name, or the pod's.
    """
    name = spec.name or "hvd"
    wrong = labels.wrong(name, last, what)
    if wrong:
        raise JobError(f"name: {wrong}.")
    return name


def escaped(text: str) -> str:
    """Return text as Kubernetes leaves it: it puts variables in for $(NAME), and takes $$ for one $."""
    return _DOLLARS.sub(lambda found: found[0] * 2, text)


def resources(asked: Resources) -> dict[str, dict[str, str | int]]:
    """Return requests and limits; devices are limits, which Kubernetes takes for requests too."""
    found: dict[str, dict[str, str | int]] = {"requests": {}, "limits": {}}
    for side, which in (("requests", "request"), ("limits", "limit")):
        for name, bounds, shown in (("cpu", asked.cpu, _cores), ("memory", asked.memory_bytes, _bytes)):
            value = _side(bounds, which)
            if value is not None:
                found[side][name] = shown(value)
    if asked.gpus is not None:
        found["limits"][GPU] = asked.gpus
    return {side: amounts for side, amounts in found.items() if amounts}


def environment(spec: JobSpec, own: dict[str, str], others: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the variables of ``own``, then the job's; ``others`` are set by the platform.

    Raises
    ------
    JobError
        Kubernetes refuses a name, or it is set already.
    """
    for variable in spec.environment:
        if variable.name in (*own, *others):
            raise JobError(f"environment: {variable.name} has another meaning there: leave it out.")
        if not _VARIABLE.fullmatch(variable.name):
            raise JobError(f"environment: Kubernetes takes no variable {variable.name!r}: rename it, or leave it out.")
    said = {each.name: each.value for each in spec.environment if each.value is not None and each.name not in SECRETS}
    return [{"name": name, "value": escaped(value)} for name, value in (own | said).items()]


def container(name: str, spec: JobSpec, asked: Resources, **more: Any) -> dict[str, Any]:
    """Return a container with the job's image; what is empty is left out.

    Raises
    ------
    JobError
        The job has no image.
    """
    if not spec.image:
        raise JobError("image: a container needs one that has hvd_kernel in it: give it.")
    known: dict[str, Any] = {"name": name, "image": whole(spec.image, "image"), **more}
    known |= {"resources": resources(asked), "volumeMounts": [_SHM]}
    return {name: value for name, value in known.items() if value or value == 0}


def shell(script: str) -> dict[str, Any]:
    """Return the command of a container that runs a script, and ends with the first line that fails."""
    return {"command": ["/bin/sh", "-ec"], "args": [escaped(script)]}


def volumes(shm_bytes: int) -> list[dict[str, Any]]:
    """Return memory for /dev/shm, of which a container has 64 MiB otherwise."""
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": binary(shm_bytes)}}]


def dumped(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return objects as YAML documents."""
    made: str = yaml.dump_all([dict(each) for each in objects], Dumper=_Dumper, sort_keys=False, width=100_000)
    return made


def _side(bounds: Bounds, which: str) -> float | None:
    value: float | None = getattr(bounds, which)
    return value


def _cores(number: float) -> str:
    """Return cores; Kubernetes counts thousandths, and what is less counts as one."""
    return cores(number if number == int(number) else math.ceil(round(number * _MILLI, 6)) / _MILLI)


def _bytes(number: float) -> str:
    return binary(math.ceil(number))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc,unused-ignore]
    """Quotes every text that some YAML reader could take for a number or a truth value: y, 1e3, 0o7."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None if _SAFE.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
