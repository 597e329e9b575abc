"""Polyaxon's component of version 1.1 with ``run.kind: mpijob``: a launcher, and workers with slots.

The launcher is not a rank: it runs an mpirun line, which starts ranks on the workers. Names are camelCase, resources
have Kubernetes' format. An operation is also supported if its component is in the same file.
Source: https://polyaxon.com/docs/experimentation/distributed/mpi-jobs/
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec

from hvd_kernel.jobs.documents import Document, Path
from hvd_kernel.jobs.quantities import quantity
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.readers.scripts.commands import of_words
from hvd_kernel.jobs.spec import NO_COMMAND, Bounds, JobError, JobSpec, Replica, Resources, Variable

_KINDS = ("component", "operation")
_TEMPLATE = re.compile(r"\{\{([^{}]*)\}\}")
_QUIET = {"version", "kind", "description", "tags", "outputs", "type", "isOptional", "name"}
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class _Resources(msgspec.Struct):
    requests: dict[str, str | float] = msgspec.field(default_factory=dict)
    limits: dict[str, str | float] = msgspec.field(default_factory=dict)


class _Env(msgspec.Struct, rename="camel"):
    name: str
    value: str | float | bool | None = None
    value_from: Any = None


class _Container(msgspec.Struct, rename="camel"):
    image: str = ""
    command: str | list[str | float] = msgspec.field(default_factory=list)
    args: str | list[str | float] = msgspec.field(default_factory=list)
    env: list[_Env] = msgspec.field(default_factory=list)
    resources: _Resources = msgspec.field(default_factory=_Resources)
    working_dir: str = ""


class _Replica(msgspec.Struct):
    replicas: Count = 1
    container: _Container = msgspec.field(default_factory=_Container)


class _Run(msgspec.Struct, rename="camel"):
    kind: str
    slots_per_worker: Count = 1
    launcher: _Replica | None = None
    worker: _Replica | None = None


class _Input(msgspec.Struct):
    name: str
    value: Any = None


class _Param(msgspec.Struct):
    value: Any = None


class _Component(msgspec.Struct):
    run: _Run
    name: str = ""
    inputs: list[_Input] = msgspec.field(default_factory=list)
    params: dict[str, _Param] = msgspec.field(default_factory=dict)


class _Operation(msgspec.Struct):
    component: _Component
    name: str = ""
    params: dict[str, _Param] = msgspec.field(default_factory=dict)


def is_one(document: Document) -> bool:
    """Return whether this is a component or an operation, by its kind, or by the kind of ``run``."""
    value = document.value
    if not isinstance(value, dict):
        return False
    run = value.get("run")
    return value.get("kind") in _KINDS or (isinstance(run, dict) and "kind" in run)


def read(document: Document) -> JobSpec:
    """Return the job of a component.

    Raises
    ------
    JobError
        The file is invalid; the message has the line, column and field.
    """
    path, component, params = _component(document)
    run = component.run
    at = (*path, "run")
    if run.kind != "mpijob":
        raise document.error((*at, "kind"), f"{run.kind!r} is not a job of ranks; allowed: mpijob")
    if run.worker is None:
        raise document.error(at, "there is no worker: ranks run on run.worker.replicas workers")
    values = {item.name: item.value for item in component.inputs} | {key: param.value for key, param in params.items()}
    resources = _resources(run.worker.container.resources, (*at, "worker", "container", "resources"), document)
    workers = tuple(
        Replica("worker", index, slots=run.slots_per_worker, resources=resources)
        for index in range(run.worker.replicas)
    )
    line = _line(run, values, at, document)
    warnings = [*line.warnings, *_warnings(document, path, run)]
    return JobSpec(
        "polyaxonfile",
        workers,
        steps=line.steps,
        np=_fit(line, workers, at, document),
        environment=_variables(run, line),
        name=component.name,
        image=run.worker.container.image or (run.launcher.container.image if run.launcher else ""),
        workdir=line.workdir or run.worker.container.working_dir,
        interfaces=line.interfaces,
        warnings=tuple(warnings),
    )


def _component(document: Document) -> tuple[Path, _Component, dict[str, _Param]]:
    if document.value.get("kind") != "operation":
        component = document.convert(_Component)
        return (), component, component.params
    if "component" not in document.value:
        raise document.error((), "component is missing: one that is stored elsewhere (hubRef, pathRef) is not fetched")
    operation = document.convert(_Operation)
    return ("component",), operation.component, operation.component.params | operation.params


def _line(run: _Run, values: Mapping[str, Any], at: Path, document: Document) -> MpirunLine:
    """Return the command of the launcher, or of the workers if the launcher has none."""
    for role, replica in (("launcher", run.launcher), ("worker", run.worker)):
        container_path = (*at, role, "container")
        fill = functools.partial(filled, values=values, document=document, path=container_path)
        command = _command(replica.container, fill) if replica else []
        if command:
            try:
                return of_words(command, document.name)
            except JobError as error:
                raise document.error(container_path, str(error).removeprefix(f"{document.name}: ")) from None
    return MpirunLine(warnings=(f"{'.'.join(map(str, at))}.launcher {NO_COMMAND}",))


def _fit(line: MpirunLine, workers: tuple[Replica, ...], at: Path, document: Document) -> int:
    try:
        return line.fit(workers)
    except JobError as error:
        raise document.error((*at, "launcher", "container"), str(error)) from None


def _command(container: _Container, fill: Callable[[str], str] = str) -> list[str]:
    """Return the words of a container's command; a command that is a text is a shell script."""
    if isinstance(container.command, str) and container.command and not container.args:
        return ["sh", "-c", fill(container.command)]
    lists = [[item] if isinstance(item, str) else item for item in (container.command, container.args) if item]
    return [fill(str(part)) for parts in lists for part in parts]


def filled(text: str, values: Mapping[str, Any], document: Document, path: Path) -> str:
    """Replace ``{{ name }}`` in a command by values.

    Raises
    ------
    JobError
        A name has no value, or is an expression.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1].strip().removeprefix("params.").removesuffix(".value")
        if not isinstance(values.get(name), (str, int, float)):
            raise document.error(path, f"{match[0]} has no value: there are {', '.join(sorted(values)) or 'none'}")
        return str(values[name])

    return _TEMPLATE.sub(value, text)


def _resources(requirements: _Resources, path: Path, document: Document) -> Resources:
    def bounds(name: str) -> Bounds:
        return Bounds(
            *(quantity(part[name]) if name in part else None for part in (requirements.requests, requirements.limits))
        )

    devices = {
        key: value for key, value in (requirements.requests | requirements.limits).items() if key.endswith("/gpu")
    }
    try:
        gpus = sum(int(value) for value in devices.values()) if devices else None
        return Resources(bounds("cpu"), bounds("memory"), gpus)
    except (ValueError, OverflowError, JobError) as error:
        raise document.error(path, str(error)) from None


def _variables(run: _Run, line: MpirunLine) -> tuple[Variable, ...]:
    """Return the workers' variables, and those that mpirun exports from the launcher."""
    of_worker, of_launcher = _env(run.worker), _env(run.launcher)
    exported = {
        item.name: of_launcher.get(item.name) if item.value is None else item.value for item in line.environment
    }
    merged = of_worker | {name: of_worker.get(name) if value is None else value for name, value in exported.items()}
    return tuple(Variable(name, value) for name, value in merged.items())


def _env(replica: _Replica | None) -> dict[str, str | None]:
    return {variable.name: _plain(variable.value) for variable in replica.container.env} if replica else {}


def _plain(value: str | float | bool | None) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


def _warnings(document: Document, path: Path, run: _Run) -> Iterable[str]:
    """Yield a sentence for each ignored part of the file."""
    models: dict[Path, type[msgspec.Struct]] = {
        (): _Operation if path else _Component,
        path: _Component,
        (*path, "run"): _Run,
    }
    for role in ("launcher", "worker"):
        models |= {(*path, "run", role): _Replica, (*path, "run", role, "container"): _Container}
    for where, model in models.items():
        value: Any = document.value
        for step in where:
            value = value.get(step) or {}
        fields = model.__struct_encode_fields__
        for name in value:
            if name not in fields and name not in _QUIET:
                near = difflib.get_close_matches(name, fields, 1, 0.8)
                if near:
                    hint = f"did you mean {near[0]!r}? read are {', '.join(fields)}"
                    raise document.error((*where, name), f"is unknown here: {hint}")
                yield f"{'.'.join(map(str, (*where, name)))} is ignored: it is for Polyaxon's cluster"
    if run.launcher and run.worker and _command(run.worker.container) and _command(run.launcher.container):
        yield "run.worker.container.command is ignored: the launcher's line starts the ranks"
