"""Manifests of jobs in Kubernetes: indexed Jobs (batch/v1), MPIJobs (kubeflow.org/v2beta1), TrainJobs (v1alpha1).

A pod of an indexed Job has one or more ranks. An MPIJob is checked by the rules of Kubeflow's controller: the schema
does not detect most mistakes, and the job would fail in the cluster. Fields that a TrainJob does not set are defined by
its runtime, which exists only in the cluster.
Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode ;
https://github.com/kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go and pkg/apis/kubeflow/validation ;
https://github.com/kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from hvd_kernel.jobs.documents import Document, Path, ignore_reasons, parse_all
from hvd_kernel.jobs.readers import launch_lines, settings
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.readers.settings import GPU_NAME
from hvd_kernel.jobs.spec import (
    Bounds,
    JobError,
    JobSpec,
    RendezvousAddress,
    Replica,
    Resources,
    Variable,
    quantity,
)


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


def only(
    text: str, name: str, kind: str, version: str, older: Collection[str] = ()
) -> tuple[Document, list[dict[str, Any]]]:
    """Return the object of a kind, and the other objects of the file.

    Raises
    ------
    JobError
        The file does not have exactly one object of the kind, or its version is not supported.
    """
    objects = [document for document in parse_all(text, name) if isinstance(document.value, dict)]
    documents = [document for document in objects if document.value.get("kind") == kind]
    if len(documents) != 1:
        raise JobError(
            f"{name}: one object of kind {kind} is expected, but there are {len(documents)}: split the file."
        )
    document = documents[0]
    if document.value.get("apiVersion") not in {version, *older}:
        actual = document.value.get("apiVersion")
        raise document.error(("apiVersion",), f"{actual!r} is not known for kind {kind}: it must be {version}")
    return document, [other.value for other in objects if other is not document]


def called(document: Document, meta: Meta, last: str, kind: str) -> str:
    """Return an object's name.

    Raises
    ------
    JobError
        The name with suffix ``last`` is not a valid name of a pod.
    """
    name = meta.name or meta.generateName.rstrip("-")
    problem = label_mistake(name, last, kind) if name else "is missing: the pods are called by it"
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


def ranks_of(document: Document, path: Path, template: Template, writer_variables: tuple[str, ...] = ()) -> PodRanks:
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
    line, variables = run(document, container_path, container)
    variables_of_user = [variable for variable in variables if variable.name not in writer_variables]
    return PodRanks(
        container.image,
        msgspec.structs.replace(line, workdir=container.workingDir or line.workdir),
        merged(variables_of_user, line.environment),
        {variable.name: variable.value or "" for variable in variables if variable.name in writer_variables},
        resources_of(document, (*container_path, "resources"), container.resources),
    )


def merged(first: Sequence[Variable], second: Sequence[Variable]) -> tuple[Variable, ...]:
    """Merge variables; the first sequence takes precedence."""
    names = {variable.name for variable in first}
    return (*first, *(variable for variable in second if variable.name not in names))


def run(document: Document, path: Path, container: Container) -> tuple[MpirunLine, list[Variable]]:
    """Read a container; return its command, and its variables besides those that only the cluster knows.

    Raises
    ------
    JobError
        The template is invalid; the message has the line, column and field.
    """
    words = [literal(word) for word in (container.command or []) + (container.args or [])]
    values = {variable.name: variable.value or "" for variable in container.env or [] if variable.valueFrom is None}
    try:
        line = launch_lines.of_words(words, document.name, values)
    except JobError as error:
        raise document.error((*path, "command"), str(error).removeprefix(f"{document.name}: ")) from None
    variables = []
    for number, variable in enumerate(container.env or []):
        if settings.is_of_cluster({"value": variable.value, "valueFrom": variable.valueFrom}):
            continue
        try:
            variables.append(Variable(variable.name, literal(variable.value or "")))
        except JobError as error:
            raise document.error((*path, "env", number), str(error)) from None
    return line, variables


def literal(text: str) -> str:
    """Unescape a text of a manifest, in which $$ stands for $."""
    return text.replace("$$", "$")


def resources_of(document: Document, path: Path, requirements: Requirements | None) -> Resources:
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

    devices = [name for name in (*limits, *requests) if GPU_NAME.fullmatch(name)]
    gpus = (number("limits", limits, devices[0]) or number("requests", requests, devices[0]) or 0) if devices else None
    try:
        return Resources(bounds("cpu"), bounds("memory"), None if gpus is None else int(gpus))
    except JobError as error:
        error_path = () if str(error).startswith(document.name) else path
        raise document.error(error_path, str(error)) if error_path else error from None


_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LONGEST = 63


def label_mistake(name: str, last: str, kind: str) -> str:
    """Return what is wrong with a job's name, whose last pod is named name + ``last``, or an empty string.

    Kubernetes' names are DNS labels (RFC 1035), of limited length; the name of a job is a prefix of its pods' names.
    Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#rfc-1035-label-names
    """
    pod = name + last
    if not _LABEL.fullmatch(name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("0123456789-")[: _LONGEST - len(last)].rstrip("-")
        remedy = f", such as {near!r}" if near else ""
        return f"{name!r} is not a {kind}'s name (small letters, digits and dashes, a letter first){remedy}"
    if len(pod) > _LONGEST:
        over = f"has {len(pod)} characters, and {_LONGEST} are allowed: shorten it by {len(pod) - _LONGEST}"
        return f"{name!r} is too long for this {kind}: the name of its pod {pod} {over}"
    return ""


Completions = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_OWN = ("HVD_JOB_NAME", "HVD_JOB_SERVICE", "HVD_JOB_SIZE", "HVD_JOB_SLOTS", "HVD_JOB_PORT")
_INDEXED_JOB_AT = ("spec", "template")


class _IndexedJobSpec(msgspec.Struct):
    template: Template
    completions: Completions | None = None
    parallelism: Completions | None = None
    completionMode: str | None = None  # noqa: N815 - Kubernetes' name


class _IndexedJob(msgspec.Struct):
    spec: _IndexedJobSpec
    metadata: Meta = msgspec.field(default_factory=Meta)


matches_indexed_job = matcher("Job")


def read_indexed_job(text: str, name: str) -> JobSpec:
    """Return the job of an Indexed Job's manifest.

    Raises
    ------
    JobError
        The manifest is invalid; the message has the line, column and field.
    """
    document, others = only(text, name, "Job", "batch/v1")
    file = document.convert(_IndexedJob)
    pods = file.spec.completions or 1
    _check(document, file.spec, pods)
    job_name = called(document, file.metadata, f"-{pods - 1}", "Job")
    ranks = ranks_of(document, _INDEXED_JOB_AT, file.spec.template, _OWN)
    slots = _whole(document, ranks.writer_variables, "HVD_JOB_SLOTS", 1)
    port = _whole(document, ranks.writer_variables, "HVD_JOB_PORT", 0)
    service = ranks.writer_variables.get("HVD_JOB_SERVICE", "")
    replicas = tuple(Replica("worker", index, slots=slots, resources=ranks.resources) for index in range(pods))
    return JobSpec(
        "job",
        replicas,
        steps=ranks.line.steps,
        np=launch_lines.fit(ranks.line, replicas, document, (*_INDEXED_JOB_AT, "spec", "containers", 0, "command")),
        environment=ranks.environment,
        name=job_name,
        image=ranks.image,
        workdir=ranks.line.workdir,
        rendezvous=RendezvousAddress(f"{job_name}-0.{service}", port) if service else None,
        interfaces=ranks.line.interfaces,
        warnings=ranks.line.warnings,
        platform_fields=(
            *settings.of_job(document.value, job_name, replicas),
            *ranks.line.platform_fields,
            *settings.other_objects(
                others, (("Service", service), ("Secret", f"{job_name}-secret")) if service else ()
            ),
        ),
    )


def _check(document: Document, spec: _IndexedJobSpec, pods: int) -> None:
    one_of(document, ("spec", "completionMode"), spec.completionMode, ("Indexed", "NonIndexed"))
    if pods > 1 and spec.completionMode != "Indexed":
        raise document.error(("spec", "completionMode"), f"must be Indexed: the {pods} pods take their ranks from it")
    if (spec.parallelism or 1) < pods:
        raise document.error(
            ("spec", "parallelism"), f"must be {pods}, as completions: ranks of pods that do not run are waited for"
        )


def _whole(document: Document, variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 7):  # noqa: PLR2004 - a million
        raise document.error(_INDEXED_JOB_AT, f"{name}={text!r} must be a whole number")
    return int(text)


Natural = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]
Slots = Annotated[int, msgspec.Meta(ge=0, le=100_000)]

_POLICY = ("spec", "runPolicy")
_REPLICAS = ("spec", "mpiReplicaSpecs")
_VALUES: tuple[tuple[Path, tuple[str, ...]], ...] = (
    (("spec", "mpiImplementation"), ("OpenMPI", "Intel", "MPICH")),
    (("spec", "launcherCreationPolicy"), ("AtStartup", "WaitForWorkersReady")),
    ((*_POLICY, "cleanPodPolicy"), ("None", "Running", "All")),
    ((*_POLICY, "managedBy"), ("kubeflow.org/mpi-operator", "kueue.x-k8s.io/multikueue")),
    ((*_REPLICAS, "Launcher", "restartPolicy"), ("Never", "OnFailure")),
    ((*_REPLICAS, "Worker", "restartPolicy"), ("Never", "OnFailure")),
)


class _Scheduling(msgspec.Struct, forbid_unknown_fields=True):
    minAvailable: int | None = None  # noqa: N815 - the operator's names, also below
    queue: str | None = None
    minResources: Any = None  # noqa: N815
    priorityClass: str | None = None  # noqa: N815
    scheduleTimeoutSeconds: int | None = None  # noqa: N815


class _RunPolicy(msgspec.Struct, forbid_unknown_fields=True):
    cleanPodPolicy: str | None = None  # noqa: N815
    ttlSecondsAfterFinished: Natural | None = None  # noqa: N815
    activeDeadlineSeconds: Natural | None = None  # noqa: N815
    backoffLimit: Natural | None = None  # noqa: N815
    suspend: bool | None = None
    managedBy: str | None = None  # noqa: N815
    schedulingPolicy: _Scheduling | None = None  # noqa: N815


class _Replicas(msgspec.Struct, forbid_unknown_fields=True):
    replicas: int | None = None
    restartPolicy: str | None = None  # noqa: N815
    template: Template | None = None


class _Specs(msgspec.Struct, forbid_unknown_fields=True):
    Launcher: _Replicas | None = None
    Worker: _Replicas | None = None


class _MpiJobSpec(msgspec.Struct, forbid_unknown_fields=True):
    mpiReplicaSpecs: _Specs  # noqa: N815
    slotsPerWorker: Slots | None = None  # noqa: N815
    runLauncherAsWorker: bool | None = None  # noqa: N815
    sshAuthMountPath: str | None = None  # noqa: N815
    launcherCreationPolicy: str | None = None  # noqa: N815
    mpiImplementation: str | None = None  # noqa: N815
    runPolicy: _RunPolicy | None = None  # noqa: N815


class _MpiJob(Manifest, kw_only=True, forbid_unknown_fields=True):
    spec: _MpiJobSpec


_OLDER = ("kubeflow.org/v1", "kubeflow.org/v1alpha2")
_TO_RUN_POLICY = ("cleanPodPolicy", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
_GONE = {
    "launcherOnMaster": "v2beta1 has a nodeSelector in the launcher's template",
    "mainContainer": "v2beta1 starts ranks in the first container",
}
_DISTRIBUTIONS = {"OpenMPI": "OpenMPI", "IntelMPI": "Intel", "MPICH": "MPICH"}
READ_AS_V2BETA1 = "{version} is read as v2beta1, whose launcher reaches workers by ssh: their image needs sshd"
"""Warning about an MPIJob of an older version, whose launcher used kubectl."""

matches_mpijob = matcher("MPIJob")


def _to_v2beta1(document: Document) -> list[str]:
    """Convert an MPIJob of v1 or v1alpha2 in place; return sentences about what v2beta1 does not have."""
    version, spec = document.value["apiVersion"], document.value.get("spec")
    if version not in _OLDER or not isinstance(spec, dict):
        return []
    warnings = [READ_AS_V2BETA1.format(version=version)]
    warnings += [f"spec.{key} is ignored: {reason}" for key, reason in _GONE.items() if spec.pop(key, None) is not None]
    policy = {key: spec.pop(key) for key in _TO_RUN_POLICY if key in spec}
    if policy and isinstance(spec.get("runPolicy", {}), dict):
        spec["runPolicy"] = policy | spec.get("runPolicy", {})
    distribution = spec.pop("mpiDistribution", None)
    if distribution is not None:
        one_of(document, ("spec", "mpiDistribution"), str(distribution), tuple(_DISTRIBUTIONS))
        spec["mpiImplementation"] = _DISTRIBUTIONS[str(distribution)]
    return warnings


def read_mpijob(text: str, name: str) -> JobSpec:
    """Return the job of an MPIJob's manifest.

    Raises
    ------
    JobError
        The manifest is invalid for the operator's controller; the message has the line, column and field.
    """
    document, others = only(text, name, "MPIJob", "kubeflow.org/v2beta1", _OLDER)
    outdated = _to_v2beta1(document)
    file = document.convert(_MpiJob)
    workers = check_scheduling(document, file)
    job_name = called(document, file.metadata, f"-worker-{max(1, workers) - 1}", "MPIJob")
    launcher = _ranks(document, "Launcher", file.spec.mpiReplicaSpecs.Launcher)
    leads = bool(file.spec.runLauncherAsWorker) or not workers
    slots = 1 if file.spec.slotsPerWorker is None else file.spec.slotsPerWorker
    replicas = [Replica("launcher", 0, slots=slots, resources=launcher.resources)] if leads else []
    image = launcher.image
    if workers:
        worker_image, resources = _worker(document, file.spec.mpiReplicaSpecs.Worker)
        image = worker_image or image
        replicas += [Replica("worker", index, slots=slots, resources=resources) for index in range(workers)]
    return JobSpec(
        "mpijob",
        tuple(replicas),
        steps=launcher.line.steps,
        np=launch_lines.fit(
            launcher.line, replicas, document, (*_REPLICAS, "Launcher", "template", "spec", "containers", 0, "command")
        ),
        environment=launcher.environment,
        name=job_name,
        image=image,
        workdir=launcher.line.workdir,
        interfaces=launcher.line.interfaces,
        warnings=(*outdated, *launcher.line.warnings),
        platform_fields=(
            *settings.of_mpijob(document.value, job_name, tuple(replicas), image=image),
            *launcher.line.platform_fields,
            *settings.other_objects(others, ()),
        ),
    )


def check_scheduling(document: Document, file: _MpiJob) -> int:
    """Check the rules of the controller, and return the number of workers.

    Raises
    ------
    JobError
        A rule is violated.
    """
    for path, allowed in _VALUES:
        value: Any = file
        for step in path:
            value = getattr(value, str(step), None)
        one_of(document, path, value, allowed)
    if file.spec.sshAuthMountPath == "":
        raise document.error(("spec", "sshAuthMountPath"), "must be a folder: leave it out for /root/.ssh")
    if file.spec.slotsPerWorker == 0:
        raise document.error(("spec", "slotsPerWorker"), "must be at least 1: no rank has a place")
    launcher, worker = file.spec.mpiReplicaSpecs.Launcher, file.spec.mpiReplicaSpecs.Worker
    if launcher is None:
        raise document.error((*_REPLICAS, "Launcher"), "is missing: an MPIJob has one")
    if launcher.replicas not in {None, 1}:
        raise document.error((*_REPLICAS, "Launcher", "replicas"), f"must be 1, not {launcher.replicas}")
    if worker is not None and (worker.replicas or 0) < 1:
        number = "it is missing" if worker.replicas is None else f"not {worker.replicas}"
        raise document.error((*_REPLICAS, "Worker", "replicas"), f"must be at least 1, {number}")
    return worker.replicas or 0 if worker else 0


def _ranks(document: Document, role: str, replicas: _Replicas | None) -> PodRanks:
    return ranks_of(document, (*_REPLICAS, role, "template"), _template(document, role, replicas))


def _template(document: Document, role: str, replicas: _Replicas | None) -> Template:
    if replicas is None or replicas.template is None:
        raise document.error((*_REPLICAS, role, "template"), "is missing: its spec has the containers")
    return replicas.template


def _worker(document: Document, replicas: _Replicas | None) -> tuple[str, Resources]:
    """Return the image and the resources of the workers; their command, such as sshd, starts no ranks."""
    template = _template(document, "Worker", replicas)
    path = (*_REPLICAS, "Worker", "template", "spec", "containers")
    if not template.spec.containers:
        raise document.error(path, "at least one container is needed")
    first = template.spec.containers[0]
    return first.image, resources_of(document, (*path, 0, "resources"), first.resources)


NumNodes = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
_LAUNCHER = "-launcher-0-0"
_TRAINJOB_AT = ("spec", "trainer")
_MANAGERS = ("trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue")
_RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
_IN_RUNTIME = "what it changes is the runtime's, which is in the cluster"


class _Runtime(msgspec.Struct, forbid_unknown_fields=True):
    name: Label
    apiGroup: str | None = None  # noqa: N815 - the Trainer's names, also below
    kind: str | None = None


class _Trainer(msgspec.Struct, forbid_unknown_fields=True):
    image: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[EnvVar] | None = None
    numNodes: NumNodes | None = None  # noqa: N815
    numProcPerNode: NumNodes | None = None  # noqa: N815
    resourcesPerNode: Requirements | None = None  # noqa: N815


class _TrainJobSpec(msgspec.Struct, forbid_unknown_fields=True):
    runtimeRef: _Runtime  # noqa: N815
    trainer: _Trainer = msgspec.field(default_factory=_Trainer)
    suspend: bool | None = None
    activeDeadlineSeconds: Annotated[int, msgspec.Meta(ge=1)] | None = None  # noqa: N815
    managedBy: str | None = None  # noqa: N815
    labels: Any = None
    annotations: Any = None
    initializer: Annotated[Any, msgspec.Meta(description="what it downloads must already exist")] = None
    runtimePatches: Annotated[Any, msgspec.Meta(description=_IN_RUNTIME)] = None  # noqa: N815
    podTemplateOverrides: Annotated[Any, msgspec.Meta(description=_IN_RUNTIME)] = None  # noqa: N815
    podSpecOverrides: Annotated[Any, msgspec.Meta(description=_IN_RUNTIME)] = None  # noqa: N815


class _TrainJob(Manifest, kw_only=True, forbid_unknown_fields=True):
    spec: _TrainJobSpec


matches_trainjob = matcher("TrainJob")


def read_trainjob(text: str, name: str) -> JobSpec:
    """Return the job of a TrainJob's manifest.

    Raises
    ------
    JobError
        The manifest is invalid; the message has the line, column and field.
    """
    document, others = only(text, name, "TrainJob", "trainer.kubeflow.org/v1alpha1")
    file = document.convert(_TrainJob)
    trainer = file.spec.trainer
    one_of(document, ("spec", "managedBy"), file.spec.managedBy, _MANAGERS)
    one_of(document, ("spec", "runtimeRef", "kind"), file.spec.runtimeRef.kind, _RUNTIMES)
    nodes = trainer.numNodes or 1
    job_name = called(document, file.metadata, max(_LAUNCHER, f"-node-0-{nodes - 1}", key=len), "TrainJob")
    container = Container(trainer.image or "", trainer.command, trainer.args, trainer.env)
    line, variables = run(document, _TRAINJOB_AT, container)
    resources = resources_of(document, (*_TRAINJOB_AT, "resourcesPerNode"), trainer.resourcesPerNode)
    slots = trainer.numProcPerNode or resources.gpus or 1
    replicas = tuple(Replica("worker", index, slots=slots, resources=resources) for index in range(nodes))
    return JobSpec(
        "trainjob",
        replicas,
        steps=line.steps,
        np=launch_lines.fit(line, replicas, document, (*_TRAINJOB_AT, "command")),
        environment=merged(variables, line.environment),
        name=job_name,
        image=trainer.image or "",
        workdir=line.workdir,
        interfaces=line.interfaces,
        warnings=(*_missing(trainer), *line.warnings),
        platform_fields=(
            *settings.of_trainjob(document.value, job_name, ignore_reasons(_TrainJobSpec)),
            *line.platform_fields,
            *settings.other_objects(others, ()),
        ),
    )


def _missing(trainer: _Trainer) -> list[str]:
    sentences = {
        "numNodes is missing: it is in the runtime, 1 is assumed": trainer.numNodes,
        "numProcPerNode is missing: it is in the runtime, one per GPU is assumed": trainer.numProcPerNode,
    }
    return [f"spec.trainer.{sentence}" for sentence, value in sentences.items() if value is None]
