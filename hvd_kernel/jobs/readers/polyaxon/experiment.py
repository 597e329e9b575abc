"""Polyaxon's polyaxonfile of 0.4 to 0.6: a master and workers of Horovod, each with its own resources.

The master is rank 0 and not counted in n_workers: seven workers are eight tasks. Memory is in mebibytes, and each line
of ``run.cmd`` is a step. Files of version 1.1 are read by component.py.
Source: Polyaxon's pages "Environment" and "Horovod" of 0.6; fields: tables/polyaxon.py.
"""

from __future__ import annotations

import re
from typing import Any

from hvd_kernel.jobs.documents import Document, Path, ignored_fields, parse
from hvd_kernel.jobs.quantities import quantity, size
from hvd_kernel.jobs.readers.polyaxon import component
from hvd_kernel.jobs.spec import Bounds, JobError, JobSpec, Replica, Resources, Variable
from hvd_kernel.jobs.tables.polyaxon import Amounts, AskedResources, Polyaxonfile, Replicas

_LOOKS = re.compile(
    r"^framework:[ \t]*['\"]?horovod\b|\bn_workers[ \t]*:|^kind:[ \t]*['\"]?(experiment|group|component|operation)\b"
    r"|\bkind:[ \t]*['\"]?mpijob\b",
    re.MULTILINE,
)
_KUBERNETES = re.compile(r"^['\"]?apiVersion\b", re.MULTILINE)
_KINDS = ("experiment", "group")
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
    if component.is_one(document):
        return component.read(document)
    file = document.convert(Polyaxonfile)
    where, replicas = _replicas(file, document)
    steps = (file.run.cmd,) if isinstance(file.run.cmd, str) else tuple(file.run.cmd)
    values = (file.declarations or {}) | (file.params or {})
    return JobSpec(
        "polyaxonfile",
        _tasks(file, replicas, where, document),
        steps=tuple(component.filled(step, values, document, ("run", "cmd")) for step in steps),
        environment=_variables(file, document),
        name=file.name,
        image=(file.build.image if file.build else "") or file.run.image,
        warnings=_warnings(file, replicas, where),
    )


def _replicas(file: Polyaxonfile, document: Document) -> tuple[Path, Replicas]:
    """Return the section with the number of workers, and its path."""
    if file.kind not in _KINDS:
        raise document.error(("kind",), f"{file.kind!r} is not a job of ranks; allowed: {', '.join(_KINDS)}")
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
    master = Replica("master", 0, resources=_resources(file.environment.resources, path, document))
    default_section = _default(file, replicas, where)
    default = _resources(default_section[0], default_section[1], document)
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
            resources[index] = _resources(requested, path, document)
    return resources


def _resources(requested: AskedResources | None, path: Path, document: Document) -> Resources:
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


def _variables(file: Polyaxonfile, document: Document) -> tuple[Variable, ...]:
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


def _warnings(file: Polyaxonfile, replicas: Replicas, where: Path) -> tuple[str, ...]:
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
