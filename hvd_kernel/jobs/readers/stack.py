"""Docker stack files for a swarm: the service whose tasks run the ranks.

Source: https://docs.docker.com/reference/compose-file/ ; ``$$`` stands for $, and {{...}} is a template of swarm.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from hvd_kernel.jobs.documents import Document, Path, parse_all
from hvd_kernel.jobs.readers import launch_lines, settings
from hvd_kernel.jobs.spec import Bounds, JobError, JobSpec, RendezvousAddress, Replica, Resources, Variable, size

_LOOKS = re.compile(r"^[\"']?services[\"']?:\s*(#.*)?$", re.MULTILINE)
_OWN = ("HVD_SWARM_SERVICE", "HVD_SWARM_SLOT", "HVD_JOB_SIZE", "HVD_JOB_SLOTS", "HVD_JOB_PORT")
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Value = str | int | float | bool | None


class _Discrete(msgspec.Struct):
    kind: str = ""
    value: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Generic(msgspec.Struct):
    discrete_resource_spec: _Discrete = msgspec.field(default_factory=_Discrete)


class _Amounts(msgspec.Struct):
    cpus: str | float | None = None
    memory: str | int | None = None
    generic_resources: list[_Generic] | None = None


class _Resources(msgspec.Struct):
    limits: _Amounts = msgspec.field(default_factory=_Amounts)
    reservations: _Amounts = msgspec.field(default_factory=_Amounts)


class _Deploy(msgspec.Struct):
    mode: str = "replicated"
    replicas: Count = 1
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _Service(msgspec.Struct):
    image: str = ""
    entrypoint: str | list[str] | None = None
    command: str | list[str] | None = None
    working_dir: str = ""
    environment: dict[str, Value] | list[str] | None = None
    deploy: _Deploy = msgspec.field(default_factory=_Deploy)


class _File(msgspec.Struct):
    services: dict[str, Any]


def matches(text: str, _name: str) -> bool:
    """Return whether a file has the section ``services``."""
    return _LOOKS.search(text) is not None


def read(text: str, name: str) -> JobSpec:
    """Return the job of a stack file.

    Raises
    ------
    JobError
        The file is invalid; the message has the line, column and field.
    """
    document, *others = parse_all(text, name)
    if others:
        raise others[0].error((), "a second document stands there: a stack file has one")
    service_name = _chosen(document, document.convert(_File).services)
    path: Path = ("services", service_name)
    service = document.convert(_Service, path)
    if service.deploy.mode not in {"replicated", "replicated-job"}:
        raise document.error(
            (*path, "deploy", "mode"), f"{service.deploy.mode!r} has no number of tasks: write replicated"
        )
    variables = _variables(document, path, service.environment)
    of_writer = {name: variables.pop(name) or "" for name in _OWN if name in variables}
    words = [*_words(document, path, service.entrypoint), *_words(document, path, service.command)]
    line = launch_lines.of_words(words, name)
    resources = _resources(document, (*path, "deploy", "resources"), service.deploy.resources)
    slots = _whole(document, path, of_writer, "HVD_JOB_SLOTS") or 1
    replicas = tuple(
        Replica("worker", index, slots=slots, resources=resources) for index in range(service.deploy.replicas)
    )
    port = _whole(document, path, of_writer, "HVD_JOB_PORT")
    return JobSpec(
        "swarm",
        replicas,
        steps=line.steps,
        np=launch_lines.fit(line, replicas, document, (*path, "command")),
        environment=_merged(variables, line.environment),
        name=service_name,
        image=_plain(service.image),
        workdir=_plain(service.working_dir) or line.workdir,
        rendezvous=RendezvousAddress(f"tasks.{service_name}", port) if "HVD_SWARM_SLOT" in of_writer else None,
        interfaces=line.interfaces,
        warnings=line.warnings,
        platform_fields=(*settings.of_stack(document.value, service_name, replicas), *line.platform_fields),
    )


def _chosen(document: Document, services: Mapping[str, Any]) -> str:
    """Return the name of the service with ranks: the only service, or the one written by us."""
    ours = [name for name, service in services.items() if "HVD_SWARM_SLOT" in str(service)]
    candidates = list(services) if len(services) == 1 else ours
    if len(candidates) != 1:
        raise document.error(
            ("services",), f"one service with ranks is expected, but there are {len(services)}: leave the others out"
        )
    return candidates[0]


def _variables(
    document: Document, path: Path, environment: Mapping[str, Value] | list[str] | None
) -> dict[str, str | None]:
    pairs = environment.items() if isinstance(environment, Mapping) else (_pair(item) for item in environment or [])
    variables: dict[str, str | None] = {}
    for name, value in pairs:
        text = str(value).lower() if isinstance(value, bool) else None if value is None else str(value)
        variables[name] = None if text is None else text if name in _OWN else _plain(_literal(text))
        try:
            Variable(name, variables[name])
        except JobError as error:
            raise document.error((*path, "environment"), str(error)) from None
    return variables


def _pair(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def _merged(variables: Mapping[str, str | None], line: tuple[Variable, ...]) -> tuple[Variable, ...]:
    return (
        *(Variable(name, value) for name, value in variables.items()),
        *(variable for variable in line if variable.name not in variables),
    )


def _words(document: Document, path: Path, command: str | list[str] | None) -> list[str]:
    if isinstance(command, list):
        return [_plain(word) for word in command]
    try:
        return shlex.split(_plain(command or ""))
    except ValueError as error:
        raise document.error((*path, "command"), str(error).lower()) from None


def _plain(text: str) -> str:
    """Unescape a text of a stack file, in which $$ stands for $."""
    return text.replace("$$", "$")


def _literal(text: str) -> str:
    return text.replace('{{"{{"}}', "{{")


def _resources(document: Document, path: Path, requirements: _Resources) -> Resources:
    reserved, limits = requirements.reservations, requirements.limits

    def cpus(side: str, amounts: _Amounts) -> float | None:
        try:
            return None if amounts.cpus is None else float(amounts.cpus)
        except ValueError:
            raise document.error((*path, side, "cpus"), f"{amounts.cpus!r} is not a number of cores") from None

    def memory(side: str, amounts: _Amounts) -> int | None:
        try:
            return None if amounts.memory is None else size(amounts.memory, unit=1)
        except ValueError as error:
            raise document.error((*path, side, "memory"), str(error)) from None

    devices = [device.discrete_resource_spec for device in reserved.generic_resources or []]
    gpus = [device.value for device in devices if "gpu" in device.kind.lower()]
    try:
        return Resources(
            Bounds(cpus("reservations", reserved), cpus("limits", limits)),
            Bounds(memory("reservations", reserved), memory("limits", limits)),
            sum(gpus) if gpus else None,
        )
    except JobError as error:
        if str(error).startswith(f"{document.name}:"):
            raise
        raise document.error(path, str(error)) from None


def _whole(document: Document, path: Path, variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name, "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 7):  # noqa: PLR2004 - a million
        raise document.error((*path, "environment", name), f"{text!r} must be a whole number")
    return int(text)
