"""Manifests of jobs in Kubernetes: indexed Jobs (batch/v1), MPIJobs (kubeflow.org/v2beta1), TrainJobs (v1alpha1).

A pod of an indexed Job has one or more ranks. An MPIJob is checked by the rules of Kubeflow's controller: the schema
does not detect most mistakes, and the job would fail in the cluster. Fields that a TrainJob does not set are defined by
its runtime, which exists only in the cluster.
Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode ;
https://github.com/kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go and pkg/apis/kubeflow/validation ;
https://github.com/kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from hvd_kernel.jobs.documents import Document, Path, ignored_fields
from hvd_kernel.jobs.readers import manifests, script_lines
from hvd_kernel.jobs.spec import JobSpec, RendezvousAddress, Replica

Completions = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_OWN = ("HVD_JOB_NAME", "HVD_JOB_SERVICE", "HVD_JOB_SIZE", "HVD_JOB_SLOTS", "HVD_JOB_PORT")
_INDEXED_JOB_AT = ("spec", "template")


class _IndexedJobSpec(msgspec.Struct):
    template: manifests.Template
    completions: Completions | None = None
    parallelism: Completions | None = None
    completionMode: str | None = None  # noqa: N815 - Kubernetes' name


class _IndexedJob(msgspec.Struct):
    spec: _IndexedJobSpec
    metadata: manifests.Meta = msgspec.field(default_factory=manifests.Meta)


matches_indexed_job = manifests.matcher("Job")


def read_indexed_job(text: str, name: str) -> JobSpec:
    """Return the job of an Indexed Job's manifest.

    Raises
    ------
    JobError
        The manifest is invalid; the message has the line, column and field.
    """
    document = manifests.only(text, name, "Job", "batch/v1")
    file = document.convert(_IndexedJob)
    pods = file.spec.completions or 1
    _check(document, file.spec, pods)
    job_name = manifests.called(document, file.metadata, f"-{pods - 1}", "Job")
    ranks = manifests.ranks(document, _INDEXED_JOB_AT, file.spec.template, _OWN)
    slots = _whole(document, ranks.writer_variables, "HVD_JOB_SLOTS", 1)
    port = _whole(document, ranks.writer_variables, "HVD_JOB_PORT", 0)
    service = ranks.writer_variables.get("HVD_JOB_SERVICE", "")
    replicas = tuple(Replica("worker", index, slots=slots, resources=ranks.resources) for index in range(pods))
    return JobSpec(
        "job",
        replicas,
        steps=ranks.line.steps,
        np=script_lines.fit(ranks.line, replicas, document, (*_INDEXED_JOB_AT, "spec", "containers", 0, "command")),
        environment=ranks.environment,
        name=job_name,
        image=ranks.image,
        workdir=ranks.line.workdir,
        rendezvous=RendezvousAddress(f"{job_name}-0.{service}", port) if service else None,
        interfaces=ranks.line.interfaces,
        warnings=ranks.warnings,
    )


def _check(document: Document, spec: _IndexedJobSpec, pods: int) -> None:
    manifests.one_of(document, ("spec", "completionMode"), spec.completionMode, ("Indexed", "NonIndexed"))
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
    template: manifests.Template | None = None


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


class _MpiJob(manifests.Manifest, kw_only=True, forbid_unknown_fields=True):
    spec: _MpiJobSpec


matches_mpijob = manifests.matcher("MPIJob")


def read_mpijob(text: str, name: str) -> JobSpec:
    """Return the job of an MPIJob's manifest.

    Raises
    ------
    JobError
        The manifest is invalid for the operator's controller; the message has the line, column and field.
    """
    document = manifests.only(text, name, "MPIJob", "kubeflow.org/v2beta1")
    file = document.convert(_MpiJob)
    workers = check_scheduling(document, file)
    job_name = manifests.called(document, file.metadata, f"-worker-{max(1, workers) - 1}", "MPIJob")
    launcher = _ranks(document, "Launcher", file.spec.mpiReplicaSpecs.Launcher)
    leads = bool(file.spec.runLauncherAsWorker) or not workers
    slots = 1 if file.spec.slotsPerWorker is None else file.spec.slotsPerWorker
    replicas = [Replica("launcher", 0, slots=slots, resources=launcher.resources)] if leads else []
    warnings = launcher.warnings
    if workers:
        worker_ranks = _ranks(document, "Worker", file.spec.mpiReplicaSpecs.Worker)
        replicas += [
            Replica("worker", index, slots=slots, resources=worker_ranks.resources) for index in range(workers)
        ]
        warnings = (*warnings, *worker_ranks.warnings)
    return JobSpec(
        "mpijob",
        tuple(replicas),
        steps=launcher.line.steps,
        np=script_lines.fit(
            launcher.line, replicas, document, (*_REPLICAS, "Launcher", "template", "spec", "containers", 0, "command")
        ),
        environment=launcher.environment,
        name=job_name,
        image=launcher.image,
        workdir=launcher.line.workdir,
        interfaces=launcher.line.interfaces,
        warnings=warnings,
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
        manifests.one_of(document, path, value, allowed)
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


def _ranks(document: Document, role: str, replicas: _Replicas | None) -> manifests.PodRanks:
    path = (*_REPLICAS, role, "template")
    if replicas is None or replicas.template is None:
        raise document.error(path, "is missing: its spec has the containers")
    return manifests.ranks(document, path, replicas.template)


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
    env: list[manifests.EnvVar] | None = None
    numNodes: NumNodes | None = None  # noqa: N815
    numProcPerNode: NumNodes | None = None  # noqa: N815
    resourcesPerNode: manifests.Requirements | None = None  # noqa: N815


class _TrainJobSpec(msgspec.Struct, forbid_unknown_fields=True):
    runtimeRef: _Runtime  # noqa: N815
    trainer: _Trainer = msgspec.field(default_factory=_Trainer)
    suspend: bool | None = None
    activeDeadlineSeconds: NumNodes | None = None  # noqa: N815
    managedBy: str | None = None  # noqa: N815
    labels: Any = None
    annotations: Any = None
    initializer: Annotated[Any, msgspec.Meta(description="what it downloads must already exist")] = None
    runtimePatches: Annotated[Any, msgspec.Meta(description=_IN_RUNTIME)] = None  # noqa: N815
    podTemplateOverrides: Annotated[Any, msgspec.Meta(description=_IN_RUNTIME)] = None  # noqa: N815
    podSpecOverrides: Annotated[Any, msgspec.Meta(description=_IN_RUNTIME)] = None  # noqa: N815


class _TrainJob(manifests.Manifest, kw_only=True, forbid_unknown_fields=True):
    spec: _TrainJobSpec


matches_trainjob = manifests.matcher("TrainJob")


def read_trainjob(text: str, name: str) -> JobSpec:
    """Return the job of a TrainJob's manifest.

    Raises
    ------
    JobError
        The manifest is invalid; the message has the line, column and field.
    """
    document = manifests.only(text, name, "TrainJob", "trainer.kubeflow.org/v1alpha1")
    file = document.convert(_TrainJob)
    trainer = file.spec.trainer
    manifests.one_of(document, ("spec", "managedBy"), file.spec.managedBy, _MANAGERS)
    manifests.one_of(document, ("spec", "runtimeRef", "kind"), file.spec.runtimeRef.kind, _RUNTIMES)
    nodes = trainer.numNodes or 1
    job_name = manifests.called(document, file.metadata, max(_LAUNCHER, f"-node-0-{nodes - 1}", key=len), "TrainJob")
    container = manifests.Container(trainer.image or "", trainer.command, trainer.args, trainer.env)
    line, variables, ignored = manifests.run(document, _TRAINJOB_AT, container)
    resources = manifests.resources(document, (*_TRAINJOB_AT, "resourcesPerNode"), trainer.resourcesPerNode)
    slots = trainer.numProcPerNode or resources.gpus or 1
    replicas = tuple(Replica("worker", index, slots=slots, resources=resources) for index in range(nodes))
    return JobSpec(
        "trainjob",
        replicas,
        steps=line.steps,
        np=script_lines.fit(line, replicas, document, (*_TRAINJOB_AT, "command")),
        environment=manifests.merged(variables, line.environment),
        name=job_name,
        image=trainer.image or "",
        workdir=line.workdir,
        interfaces=line.interfaces,
        warnings=(*_missing(trainer), *ignored_fields(file.spec, ("spec",)), *ignored, *line.warnings),
    )


def _missing(trainer: _Trainer) -> list[str]:
    sentences = {
        "numNodes is missing: it is in the runtime, 1 is assumed": trainer.numNodes,
        "numProcPerNode is missing: it is in the runtime, one per GPU is assumed": trainer.numProcPerNode,
    }
    return [f"spec.trainer.{sentence}" for sentence, value in sentences.items() if value is None]
