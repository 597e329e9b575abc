"""Kubernetes objects as text: quantities, environment, containers with a /dev/shm of a given size, YAML."""

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
_SHM = {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - inside the container


def checked_name(spec: JobSpec, last: str, kind: str) -> str:
    """Return the job's name after checking it together with the suffix of its last pod.

    Raises
    ------
    JobError
        The name, or that of the pod, is invalid in Kubernetes.
    """
    name = spec.name or "hvd"
    problem = labels.wrong(name, last, kind)
    if problem:
        raise JobError(f"name: {problem}.")
    return name


def escaped(text: str) -> str:
    """Escape a text for Kubernetes, which expands $(NAME) and replaces $$ by $."""
    return _DOLLARS.sub(lambda match: match[0] * 2, text)


def resources(required: Resources) -> dict[str, dict[str, str | int]]:
    """Return requests and limits; devices are limits, which are also requests in Kubernetes."""
    amounts_by_side: dict[str, dict[str, str | int]] = {"requests": {}, "limits": {}}
    for side, which in (("requests", "request"), ("limits", "limit")):
        for name, bounds, shown in (("cpu", required.cpu, _cores), ("memory", required.memory_bytes, _bytes)):
            value = _side(bounds, which)
            if value is not None:
                amounts_by_side[side][name] = shown(value)
    if required.gpus is not None:
        amounts_by_side["limits"][GPU] = required.gpus
    return {side: amounts for side, amounts in amounts_by_side.items() if amounts}


def environment(spec: JobSpec, hvd_variables: dict[str, str], others: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the variables of ``hvd_variables`` and of the job; the variables ``others`` are set by the platform.

    Raises
    ------
    JobError
        A name is invalid in Kubernetes, or already set.
    """
    for variable in spec.environment:
        if variable.name in (*hvd_variables, *others):
            raise JobError(f"environment: {variable.name} has another meaning there: leave it out.")
        if not _VARIABLE.fullmatch(variable.name):
            raise JobError(f"environment: Kubernetes takes no variable {variable.name!r}: rename it, or leave it out.")
    of_job = {
        variable.name: variable.value
        for variable in spec.environment
        if variable.value is not None and variable.name not in SECRETS
    }
    return [{"name": name, "value": escaped(value)} for name, value in (hvd_variables | of_job).items()]


def container(name: str, spec: JobSpec, required: Resources, **more: Any) -> dict[str, Any]:
    """Return a container with the job's image, without empty fields.

    Raises
    ------
    JobError
        The job has no image.
    """
    if not spec.image:
        raise JobError("image: a container needs one that has hvd_kernel in it: give it.")
    fields: dict[str, Any] = {"name": name, "image": whole(spec.image, "image"), **more}
    fields |= {"resources": resources(required), "volumeMounts": [_SHM]}
    return {name: value for name, value in fields.items() if value or value == 0}


def shell(script: str) -> dict[str, Any]:
    """Return the command of a container that runs a script, up to the first line that fails."""
    return {"command": ["/bin/sh", "-ec"], "args": [escaped(script)]}


def volumes(shm_bytes: int) -> list[dict[str, Any]]:
    """Return a volume in memory for /dev/shm, which has 64 MiB by default."""
    return [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": binary(shm_bytes)}}]


def dumped(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return objects as YAML documents."""
    text: str = yaml.dump_all([dict(item) for item in objects], Dumper=_Dumper, sort_keys=False, width=100_000)
    return text


def _side(bounds: Bounds, which: str) -> float | None:
    value: float | None = getattr(bounds, which)
    return value


def _cores(number: float) -> str:
    """Return cores, rounded up to Kubernetes' unit of a thousandth."""
    return cores(number if number == int(number) else math.ceil(round(number * _MILLI, 6)) / _MILLI)


def _bytes(number: float) -> str:
    return binary(math.ceil(number))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc,unused-ignore]
    """Quotes every text that a YAML parser could read as a number or a boolean: y, 1e3, 0o7."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None if _SAFE.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
