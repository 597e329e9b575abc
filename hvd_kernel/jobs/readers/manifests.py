"""Kubernetes objects in a file: find the object of a kind, and check its name and values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hvd_kernel.jobs import labels
from hvd_kernel.jobs.documents import Document, Path, parse_all
from hvd_kernel.jobs.quantities import quantity
from hvd_kernel.jobs.readers import script_lines
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.spec import Bounds, JobError, Resources, Variable


class Meta(msgspec.Struct):
    """The part of an object's metadata that names a job."""

    name: str = ""
    generateName: str = ""  # noqa: N815 - Kubernetes' name


class Manifest(msgspec.Struct, kw_only=True):
    """Common fields of all objects; each kind adds its ``spec``."""

    apiVersion: str  # noqa: N815
    kind: str
    metadata: Meta = msgspec.field(default_factory=Meta)
    status: Any = None


def matcher(kind: str) -> Callable[[str, str], bool]:
    """Return a function that matches files with a top-level object of a kind."""
    line = re.compile(rf"^[\"'{{]*kind[\"']?[ \t]*:[ \t]*[\"']?{kind}[\"']?[ \t]*(?:[,#}}].*)?$", re.MULTILINE)
    version = re.compile(r"\bapiVersion[\"']?[ \t]*:")
    return lambda text, _name: line.search(text) is not None and version.search(text) is not None


def only(text: str, name: str, kind: str, version: str) -> Document:
    """Return the object of a kind.

    Raises
    ------
    JobError
        The file does not have exactly one object of the kind, or its version is not supported.
    """
    documents = [doc for doc in parse_all(text, name) if isinstance(doc.value, dict) and doc.value.get("kind") == kind]
    if len(documents) != 1:
        raise JobError(
            f"{name}: one object of kind {kind} is expected, but there are {len(documents)}: split the file."
        )
    document = documents[0]
    if document.value.get("apiVersion") != version:
        actual = document.value.get("apiVersion")
        raise document.error(("apiVersion",), f"{actual!r} is not known for kind {kind}: it must be {version}")
    return document


def called(document: Document, meta: Meta, last: str, kind: str) -> str:
    """Return an object's name.

    Raises
    ------
    JobError
        The name with suffix ``last`` is not a valid name of a pod.
    """
    name = meta.name or meta.generateName.rstrip("-")
    problem = labels.wrong(name, last, kind) if name else "is missing: the pods are called by it"
    if problem:
        raise document.error(("metadata", "name"), problem)
    return name


def one_of(document: Document, path: Path, value: str | None, allowed: Sequence[str]) -> None:
    """Check a field with a fixed set of values; None stands for a missing field.

    Raises
    ------
    JobError
        The value is not allowed.
    """
    if value is not None and value not in allowed:
        raise document.error(path, f"{value!r} is not known: it must be one of {', '.join(allowed)}")


Amounts = dict[str, str | int | float]

_SECRETS = ("HVD_SECRET_KEY", "HOROVOD_SECRET_KEY")
_GPU = re.compile(r"[\w.-]+/gpu", re.ASCII)
_OF_NO_RANK = {
    "initContainers": "what they prepare must already exist",
    "nodeSelector": "the plan does not choose nodes",
    "affinity": "the plan does not choose nodes",
}


class EnvVar(msgspec.Struct):
    """An environment variable of a container."""

    name: str
    value: str | None = None
    valueFrom: Any = None  # noqa: N815 - Kubernetes' name, also below


class Requirements(msgspec.Struct):
    """Resources of a container."""

    requests: Amounts | None = None
    limits: Amounts | None = None


class Container(msgspec.Struct):
    """The fields of a container that are used."""

    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[EnvVar] | None = None
    resources: Requirements | None = None
    workingDir: str | None = None  # noqa: N815


class PodSpec(msgspec.Struct):
    """The fields of a pod that are used."""

    containers: list[Container]
    volumes: list[dict[str, Any]] | None = None
    initContainers: Any = None  # noqa: N815
    nodeSelector: Any = None  # noqa: N815
    affinity: Any = None


class Template(msgspec.Struct):
    """A pod's template."""

    spec: PodSpec


class PodRanks(msgspec.Struct, frozen=True):
    """The ranks of a pod's template; ``writer_variables`` were added by our writers."""

    image: str
    line: MpirunLine
    environment: tuple[Variable, ...]
    writer_variables: Mapping[str, str]
    resources: Resources
    warnings: tuple[str, ...]


def ranks(document: Document, path: Path, template: Template, writer_variables: tuple[str, ...] = ()) -> PodRanks:
    """Read the template at a path; ``writer_variables`` are returned separately.

    Raises
    ------
    JobError
        The template is invalid; the message has the line, column and field.
    """
    containers = (*path, "spec", "containers")
    if not template.spec.containers:
        raise document.error(containers, "at least one container is needed")
    container, container_path = template.spec.containers[0], (*containers, 0)
    line, variables, ignored = run(document, container_path, container)
    warnings = [*_pods_ignored(template.spec, path), *ignored, *line.warnings]
    variables_of_user = [variable for variable in variables if variable.name not in writer_variables]
    return PodRanks(
        container.image,
        msgspec.structs.replace(line, workdir=container.workingDir or line.workdir),
        merged(variables_of_user, line.environment),
        {variable.name: variable.value or "" for variable in variables if variable.name in writer_variables},
        resources(document, (*container_path, "resources"), container.resources),
        tuple(warnings),
    )


def merged(first: Sequence[Variable], second: Sequence[Variable]) -> tuple[Variable, ...]:
    """Merge variables; the first sequence takes precedence."""
    names = {variable.name for variable in first}
    return (*first, *(variable for variable in second if variable.name not in names))


def run(document: Document, path: Path, container: Container) -> tuple[MpirunLine, list[Variable], list[str]]:
    """Read a container; return its command, its variables, and sentences about ignored fields.

    Raises
    ------
    JobError
        The template is invalid; the message has the line, column and field.
    """
    words = [literal(word) for word in (container.command or []) + (container.args or [])]
    try:
        line = script_lines.of_words(words, document.name)
    except JobError as error:
        raise document.error((*path, "command"), str(error).removeprefix(f"{document.name}: ")) from None
    variables, ignored = [], []
    for number, variable in enumerate(container.env or []):
        if variable.valueFrom is not None:
            if variable.name not in _SECRETS:
                where = ".".join(map(str, (*path, "env", number)))
                ignored.append(f"{where}: {variable.name} is ignored: only the cluster has its value")
            continue
        try:
            variables.append(Variable(variable.name, literal(variable.value or "")))
        except JobError as error:
            raise document.error((*path, "env", number), str(error)) from None
    return line, variables, ignored


def literal(text: str) -> str:
    """Unescape a text of a manifest, in which $$ stands for $."""
    return text.replace("$$", "$")


def resources(document: Document, path: Path, requirements: Requirements | None) -> Resources:
    """Return the requests and limits of a container.

    Raises
    ------
    JobError
        A value is not a quantity, or a request exceeds its limit.
    """
    requirements = requirements or Requirements()
    requests, limits = requirements.requests or {}, requirements.limits or {}

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
        error_path = () if str(error).startswith(document.name) else path
        raise document.error(error_path, str(error)) if error_path else error from None


def _pods_ignored(spec: PodSpec, path: Path) -> list[str]:
    shown = ".".join(map(str, (*path, "spec")))
    sentences = [f"{shown}.{name} is ignored: {reason}" for name, reason in _OF_NO_RANK.items() if getattr(spec, name)]
    mounted = [str(volume.get("name", "?")) for volume in spec.volumes or [] if "emptyDir" not in volume]
    if mounted:
        sentences.append(f"{shown}.volumes is ignored: {', '.join(mounted)} must already exist")
    others = len(spec.containers) - 1
    return sentences + (
        [f"{shown}.containers: {others} beside the first is ignored: it has the ranks"] if others else []
    )
