"""Pod templates of Kubernetes: the first container's image, command, environment, folder and resources.

Kubernetes knows hundreds of fields here; those that are not named below are left to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from hvd_kernel.jobs.documents import Document, Path
from hvd_kernel.jobs.quantities import quantity
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.readers.scripts import commands
from hvd_kernel.jobs.spec import Bounds, JobError, Resources, Variable

Amounts = dict[str, str | int | float]

_SECRETS = ("HVD_SECRET_KEY", "HOROVOD_SECRET_KEY")
_GPU = re.compile(r"[\w.-]+/gpu", re.ASCII)
_OF_NO_RANK = {
    "initContainers": "what they prepare must already exist",
    "nodeSelector": "the plan does not choose nodes",
    "affinity": "the plan does not choose nodes",
}


class EnvVar(msgspec.Struct):
    """A variable of a container."""

    name: str
    value: str | None = None
    valueFrom: Any = None  # noqa: N815 - Kubernetes' name, as those below


class Requirements(msgspec.Struct):
    """Resources of a container."""

    requests: Amounts | None = None
    limits: Amounts | None = None


class Container(msgspec.Struct):
    """What is read of a container."""

    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[EnvVar] | None = None
    resources: Requirements | None = None
    workingDir: str | None = None  # noqa: N815


class PodSpec(msgspec.Struct):
    """What is read of a pod."""

    containers: list[Container]
    volumes: list[dict[str, Any]] | None = None
    initContainers: Any = None  # noqa: N815
    nodeSelector: Any = None  # noqa: N815
    affinity: Any = None


class Template(msgspec.Struct):
    """A pod's template."""

    spec: PodSpec


class PodRanks(msgspec.Struct, frozen=True):
    """What a pod's template says of the ranks in it; ``own`` has the variables that our writers put there."""

    image: str
    line: MpirunLine
    environment: tuple[Variable, ...]
    own: Mapping[str, str]
    resources: Resources
    warnings: tuple[str, ...]


def ranks(document: Document, path: Path, template: Template, own: tuple[str, ...] = ()) -> PodRanks:
    """Return what the template at a path says; variables named in ``own`` are kept apart.

    Raises
    ------
    JobError
        With line, column and field.
    """
    at = (*path, "spec", "containers")
    if not template.spec.containers:
        raise document.error(at, "at least one container is needed")
    container, here = template.spec.containers[0], (*at, 0)
    line, variables, ignored = run(document, here, container)
    warnings = [*_pods_ignored(template.spec, path), *ignored, *line.warnings]
    said = [each for each in variables if each.name not in own]
    return PodRanks(
        container.image,
        msgspec.structs.replace(line, workdir=container.workingDir or line.workdir),
        merged(said, line.environment),
        {each.name: each.value or "" for each in variables if each.name in own},
        resources(document, (*here, "resources"), container.resources),
        tuple(warnings),
    )


def merged(first: Sequence[Variable], second: Sequence[Variable]) -> tuple[Variable, ...]:
    """Return variables of two places; where both name one, the first place's."""
    known = {each.name for each in first}
    return (*first, *(each for each in second if each.name not in known))


def run(document: Document, path: Path, container: Container) -> tuple[MpirunLine, list[Variable], list[str]]:
    """Return what a container's command says, its variables, and sentences on what was ignored.

    Raises
    ------
    JobError
        With line, column and field.
    """
    words = [literal(word) for word in (container.command or []) + (container.args or [])]
    try:
        line = commands.of_words(words, document.name)
    except JobError as error:
        raise document.error((*path, "command"), str(error).removeprefix(f"{document.name}: ")) from None
    variables, ignored = [], []
    for number, each in enumerate(container.env or []):
        if each.valueFrom is not None:
            if each.name not in _SECRETS:
                where = ".".join(map(str, (*path, "env", number)))
                ignored.append(f"{where}: {each.name} is ignored: only the cluster has its value")
            continue
        try:
            variables.append(Variable(each.name, literal(each.value or "")))
        except JobError as error:
            raise document.error((*path, "env", number), str(error)) from None
    return line, variables, ignored


def literal(text: str) -> str:
    """Return text as Kubernetes makes it of what is written: $$ is one $."""
    return text.replace("$$", "$")


def resources(document: Document, path: Path, asked: Requirements | None) -> Resources:
    """Return requests and limits of one container.

    Raises
    ------
    JobError
        One is not a quantity, or a request is above its limit.
    """
    asked = asked or Requirements()
    requests, limits = asked.requests or {}, asked.limits or {}

    def number(side: str, amounts: Amounts, name: str) -> float | None:
        try:
            return quantity(amounts[name]) if name in amounts else None
        except ValueError as error:
            raise document.error((*path, side, name), str(error)) from None

    def bounds(name: str) -> Bounds:
        return Bounds(number("requests", requests, name), number("limits", limits, name))

    devices = [name for name in (*limits, *requests) if _GPU.fullmatch(name)]
    gpus = (number("limits", limits, devices[0]) or number("requests", requests, devices[0]) or 0) if devices else None
    try:
        return Resources(bounds("cpu"), bounds("memory"), None if gpus is None else int(gpus))
    except JobError as error:
        at = () if str(error).startswith(document.name) else path
        raise document.error(at, str(error)) if at else error from None


def _pods_ignored(spec: PodSpec, path: Path) -> list[str]:
    shown = ".".join(map(str, (*path, "spec")))
    told = [f"{shown}.{name} is ignored: {why}" for name, why in _OF_NO_RANK.items() if getattr(spec, name)]
    mounted = [str(each.get("name", "?")) for each in spec.volumes or [] if "emptyDir" not in each]
    if mounted:
        told.append(f"{shown}.volumes is ignored: {', '.join(mounted)} must already exist")
    others = len(spec.containers) - 1
    return told + ([f"{shown}.containers: {others} beside the first is ignored: it has the ranks"] if others else [])
