"""Polyaxon's files: experiments of 0.4 to 0.6, and components of 1.1 with an MPI job.

Sources: Polyaxon's pages "Environment" and "Horovod" of 0.6;
https://polyaxon.com/docs/experimentation/distributed/mpi-jobs/
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec

from hvd_kernel.jobs.documents import Document, Path, ignored_fields, parse
from hvd_kernel.jobs.readers.launch_lines import of_words
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.spec import NO_COMMAND, Bounds, JobError, JobSpec, Replica, Resources, Variable, quantity, size

MAX_WORKERS = 10_000

Amount = Annotated[float, msgspec.Meta(ge=0)] | str | None
Placing = Annotated[Any, msgspec.Meta(description="only the scheduler of Polyaxon's cluster uses it")]
Storage = Annotated[Any, msgspec.Meta(description="ranks see the files of the machine that they run on")]
Secret = Annotated[Any, msgspec.Meta(description="it names an object in Polyaxon's cluster")]
Restart = Annotated[Any, msgspec.Meta(description="a job is started once, and its status is the command's")]
Search = Annotated[Any, msgspec.Meta(description="this is one job, no search over several")]
Settings = Annotated[Any, msgspec.Meta(description="it is for TensorFlow's own distribution strategies")]
Sources = Annotated[Any, msgspec.Meta(description="ranks run in the folder in which the job is started")]
Tpu = Annotated[Any, msgspec.Meta(description="there are no TPUs here")]


class Amounts(msgspec.Struct, forbid_unknown_fields=True):
    """Minimum and maximum amount of a resource."""

    requests: Amount = None
    limits: Amount = None


class Gpus(msgspec.Struct, forbid_unknown_fields=True):
    """Minimum and maximum number of GPUs."""

    requests: Annotated[int, msgspec.Meta(ge=0)] | None = None
    limits: Annotated[int, msgspec.Meta(ge=0)] | None = None


class AskedResources(msgspec.Struct, forbid_unknown_fields=True):
    """Resources of the master or of a worker. Cores are numbers, memory is in mebibytes."""

    cpu: Amounts | None = None
    memory: Amounts | None = None
    gpu: Gpus | None = None
    tpu: Tpu = None


class Indexed(AskedResources, kw_only=True):
    """An entry of ``worker_resources``."""

    index: int


class Pod(msgspec.Struct, forbid_unknown_fields=True):
    """The master's or a worker's section."""

    resources: AskedResources | None = None
    node_selector: Placing = None
    affinity: Placing = None
    tolerations: Placing = None
    labels: Placing = None
    annotations: Placing = None
    service_account: Placing = None
    image_pull_secrets: Secret = None
    secret_refs: Secret = None
    config_map_refs: Secret = None
    configmap_refs: Secret = None
    max_restarts: Restart = None
    restart_policy: Restart = None
    ttl: Restart = None


class WorkerSection(Pod, kw_only=True):
    """The section of a single worker."""

    index: int


class Replicas(msgspec.Struct, forbid_unknown_fields=True):
    """Workers: their number, their default resources, and exceptions."""

    n_workers: Annotated[int, msgspec.Meta(ge=0, le=MAX_WORKERS)] = 0
    default_worker: Pod | None = None
    default_worker_resources: AskedResources | None = None
    worker: list[WorkerSection] | None = None
    worker_resources: list[Indexed] | None = None
    default_worker_config: Settings = None
    worker_configs: Settings = None
    default_worker_node_selector: Placing = None
    default_worker_node_selectors: Placing = None
    default_worker_affinity: Placing = None
    default_worker_tolerations: Placing = None
    worker_node_selectors: Placing = None
    worker_affinities: Placing = None
    worker_tolerations: Placing = None


class EnvironmentSection(Pod):
    """The section of the master, with that of the workers in several spellings."""

    replicas: Replicas | None = None
    horovod: Replicas | None = None
    tensorflow: Any = None
    pytorch: Any = None
    mxnet: Any = None
    default_worker_resources: AskedResources | None = None
    worker_resources: list[Indexed] | None = None
    persistence: Storage = None
    data_refs: Storage = None
    artifact_refs: Storage = None
    outputs: Storage = None
    log_level: Any = None
    env_vars: Any = None


class RunSection(msgspec.Struct, forbid_unknown_fields=True):
    """The section of the command."""

    cmd: str | list[str] = msgspec.field(default_factory=list)
    image: str = ""
    env_vars: Any = None
    build_steps: Sources = None
    git: Sources = None
    shell: Any = None


class Build(msgspec.Struct):
    """The section of the image."""

    image: str = ""
    env_vars: Any = None
    build_steps: Sources = None
    dockerfile: Sources = None


class Polyaxonfile(msgspec.Struct, forbid_unknown_fields=True):
    """A polyaxonfile."""

    environment: EnvironmentSection = msgspec.field(default_factory=EnvironmentSection)
    run: RunSection = msgspec.field(default_factory=RunSection)
    build: Build | None = None
    version: Any = None
    kind: str = "experiment"
    framework: str = ""
    name: str = ""
    declarations: dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    hptuning: Search = None
    matrix: Search = None
    settings: Search = None
    backend: Any = None
    description: Any = None
    logging: Any = None
    project: Any = None
    tags: Any = None
    user: Any = None
    seed: Any = None


_COMPONENT_KINDS = ("component", "operation")
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


def is_component(document: Document) -> bool:
    """Return whether this is a component or an operation, by its kind, or by the kind of ``run``."""
    value = document.value
    if not isinstance(value, dict):
        return False
    run = value.get("run")
    return value.get("kind") in _COMPONENT_KINDS or (isinstance(run, dict) and "kind" in run)


def read_component(document: Document) -> JobSpec:
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
    resources = _component_resources(
        run.worker.container.resources, (*at, "worker", "container", "resources"), document
    )
    workers = tuple(
        Replica("worker", index, slots=run.slots_per_worker, resources=resources)
        for index in range(run.worker.replicas)
    )
    line = _line(run, values, at, document)
    warnings = [*line.warnings, *_component_warnings(document, path, run)]
    return JobSpec(
        "polyaxonfile",
        workers,
        steps=line.steps,
        np=_fit(line, workers, at, document),
        environment=_component_variables(run, line),
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


def _component_resources(requirements: _Resources, path: Path, document: Document) -> Resources:
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


def _component_variables(run: _Run, line: MpirunLine) -> tuple[Variable, ...]:
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


def _component_warnings(document: Document, path: Path, run: _Run) -> Iterable[str]:
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


_LOOKS = re.compile(
    r"^framework:[ \t]*['\"]?horovod\b|\bn_workers[ \t]*:|^kind:[ \t]*['\"]?(experiment|group|component|operation)\b"
    r"|\bkind:[ \t]*['\"]?mpijob\b",
    re.MULTILINE,
)
_KUBERNETES = re.compile(r"^['\"]?apiVersion\b", re.MULTILINE)
_EXPERIMENT_KINDS = ("experiment", "group")
_SECTIONS = ("replicas", "horovod", "tensorflow", "pytorch", "mxnet")


def matches(text: str, _name: str) -> bool:
    """Return whether a file has a polyaxonfile's framework, n_workers or kind, and no apiVersion of Kubernetes."""
    return _LOOKS.search(text) is not None and not _KUBERNETES.search(text)


def read(text: str, name: str) -> JobSpec:
    """Return the job of a polyaxonfile.

    Raises
    ------
    JobError
        The file is invalid; the message has the line, column and field.
    """
    document = parse(text, name)
    if is_component(document):
        return read_component(document)
    file = document.convert(Polyaxonfile)
    where, replicas = _replicas(file, document)
    steps = (file.run.cmd,) if isinstance(file.run.cmd, str) else tuple(file.run.cmd)
    values = (file.declarations or {}) | (file.params or {})
    return JobSpec(
        "polyaxonfile",
        _tasks(file, replicas, where, document),
        steps=tuple(filled(step, values, document, ("run", "cmd")) for step in steps),
        environment=_experiment_variables(file, document),
        name=file.name,
        image=(file.build.image if file.build else "") or file.run.image,
        warnings=_experiment_warnings(file, replicas, where),
    )


def _replicas(file: Polyaxonfile, document: Document) -> tuple[Path, Replicas]:
    """Return the section with the number of workers, and its path."""
    if file.kind not in _EXPERIMENT_KINDS:
        raise document.error(("kind",), f"{file.kind!r} is not a job of ranks; allowed: {', '.join(_EXPERIMENT_KINDS)}")
    sections = [name for name in _SECTIONS if getattr(file.environment, name) is not None]
    for name in sections:
        if name not in _SECTIONS[:2]:
            raise document.error(
                ("environment", name), "is another framework's section; allowed: replicas and horovod, one of them"
            )
    if len(sections) > 1:
        raise document.error(
            ("environment", sections[1]), f"excludes {sections[0]}, which says the same: keep one of them"
        )
    if sections and file.framework not in ("", "horovod"):
        raise document.error(("framework",), f"{file.framework!r} with {sections[0]}; allowed: horovod")
    section = sections[0] if sections else "replicas"
    return ("environment", section), getattr(file.environment, section) or Replicas()


def _tasks(file: Polyaxonfile, replicas: Replicas, where: Path, document: Document) -> tuple[Replica, ...]:
    path = ("environment", "resources")
    master = Replica("master", 0, resources=_experiment_resources(file.environment.resources, path, document))
    default_section = _default(file, replicas, where)
    default = _experiment_resources(default_section[0], default_section[1], document)
    special = _special(file, replicas, where, document)
    return (
        master,
        *(Replica("worker", index, resources=special.get(index, default)) for index in range(replicas.n_workers)),
    )


def _default(file: Polyaxonfile, replicas: Replicas, where: Path) -> tuple[AskedResources | None, Path]:
    """Return the default resources of workers, and their path; the newest of three spellings takes precedence."""
    if replicas.default_worker and replicas.default_worker.resources:
        return replicas.default_worker.resources, (*where, "default_worker", "resources")
    if replicas.default_worker_resources:
        return replicas.default_worker_resources, (*where, "default_worker_resources")
    return file.environment.default_worker_resources, ("environment", "default_worker_resources")


def _special(file: Polyaxonfile, replicas: Replicas, where: Path, document: Document) -> dict[int, Resources]:
    """Return the resources of workers with explicit resources, by index."""
    entries_of_workers: list[tuple[int, AskedResources | None, Path, Path]] = []
    for number, worker in enumerate(replicas.worker or ()):
        path = (*where, "worker", number)
        entries_of_workers.append((worker.index, worker.resources, (*path, "resources"), path))
    for above, entries in ((where, replicas.worker_resources), (where[:1], file.environment.worker_resources)):
        for number, entry in enumerate(entries or ()):
            path = (*above, "worker_resources", number)
            entries_of_workers.append((entry.index, entry, path, path))
    seen: set[int] = set()
    resources: dict[int, Resources] = {}
    for index, requested, path, entry_path in entries_of_workers:
        index_path = (*entry_path, "index")
        if not 0 <= index < replicas.n_workers:
            allowed = f"0 to {replicas.n_workers - 1}" if replicas.n_workers else "none"
            raise document.error(
                index_path, f"there is no worker {index}: n_workers is {replicas.n_workers}, allowed: {allowed}"
            )
        if index in seen:
            raise document.error(index_path, f"worker {index} appears twice: keep one entry for each worker")
        seen.add(index)
        if requested is not None:
            resources[index] = _experiment_resources(requested, path, document)
    return resources


def _experiment_resources(requested: AskedResources | None, path: Path, document: Document) -> Resources:
    if requested is None:
        return Resources()
    return Resources(
        _bounds(requested.cpu, quantity, (*path, "cpu"), document),
        _bounds(requested.memory, size, (*path, "memory"), document),
        None
        if requested.gpu is None
        else (requested.gpu.requests if requested.gpu.limits is None else requested.gpu.limits),
    )


def _bounds(amounts: Amounts | None, number: Any, path: Path, document: Document) -> Bounds:
    if amounts is None:
        return Bounds()
    try:
        return Bounds(*(None if value is None else number(value) for value in (amounts.requests, amounts.limits)))
    except (ValueError, JobError) as error:
        raise document.error(path, str(error)) from None


def _experiment_variables(file: Polyaxonfile, document: Document) -> tuple[Variable, ...]:
    """Return the variables of ``env_vars``, a mapping or a list of pairs; later sections take precedence."""
    variables: dict[str, str] = {}
    sections = {"build": file.build, "run": file.run, "environment": file.environment}
    for section, model in sections.items():
        env_vars = getattr(model, "env_vars", None) or []
        pairs = list(env_vars.items()) if isinstance(env_vars, dict) else env_vars
        for number, pair in enumerate(pairs if isinstance(pairs, list) else [pairs]):
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or isinstance(pair[1], (list, dict)):  # noqa: PLR2004
                raise document.error((section, "env_vars", number), "must be a name and its value: [NAME, value]")
            variables[str(pair[0])] = "" if pair[1] is None else str(pair[1])
    return tuple(Variable(name, value) for name, value in variables.items())


def _experiment_warnings(file: Polyaxonfile, replicas: Replicas, where: Path) -> tuple[str, ...]:
    models: list[tuple[Any, Path]] = [(file, ()), (file.run, ("run",)), (file.build, ("build",)), (replicas, where)]
    pods: list[tuple[Any, Path]] = [
        (file.environment, ("environment",)),
        (replicas.default_worker, (*where, "default_worker")),
        *((worker, (*where, "worker", number)) for number, worker in enumerate(replicas.worker or ())),
    ]
    models += pods + [(pod.resources, (*path, "resources")) for pod, path in pods if pod]
    sentences = [sentence for model, path in models for sentence in ignored_fields(model, path)]
    if not file.run.cmd:
        sentences.append("run.cmd is missing: `job run` needs a command")
    return tuple(sentences)
