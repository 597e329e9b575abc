"""MPIJob of Kubeflow's MPI Operator, kubeflow.org/v2beta1, with the rules of its controller.

The schema does not detect most mistakes, and the job would fail in the cluster.
Source: https://github.com/kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go and pkg/apis/kubeflow/validation.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from hvd_kernel.jobs.documents import Document, Path
from hvd_kernel.jobs.readers.kubernetes import objects, pod
from hvd_kernel.jobs.readers.scripts import commands
from hvd_kernel.jobs.spec import JobSpec, Replica

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
    template: pod.Template | None = None


class _Specs(msgspec.Struct, forbid_unknown_fields=True):
    Launcher: _Replicas | None = None
    Worker: _Replicas | None = None


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    mpiReplicaSpecs: _Specs  # noqa: N815
    slotsPerWorker: Slots | None = None  # noqa: N815
    runLauncherAsWorker: bool | None = None  # noqa: N815
    sshAuthMountPath: str | None = None  # noqa: N815
    launcherCreationPolicy: str | None = None  # noqa: N815
    mpiImplementation: str | None = None  # noqa: N815
    runPolicy: _RunPolicy | None = None  # noqa: N815


class _File(objects.Manifest, kw_only=True, forbid_unknown_fields=True):
    spec: _Spec


matches = objects.matcher("MPIJob")


def read(text: str, name: str) -> JobSpec:
    """Return the job of an MPIJob's manifest.

    Raises
    ------
    JobError
        The manifest is invalid for the operator's controller; the message has the line, column and field.
    """
    document = objects.only(text, name, "MPIJob", "kubeflow.org/v2beta1")
    file = document.convert(_File)
    workers = check(document, file)
    job_name = objects.called(document, file.metadata, f"-worker-{max(1, workers) - 1}", "MPIJob")
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
        np=commands.fit(
            launcher.line, replicas, document, (*_REPLICAS, "Launcher", "template", "spec", "containers", 0, "command")
        ),
        environment=launcher.environment,
        name=job_name,
        image=launcher.image,
        workdir=launcher.line.workdir,
        interfaces=launcher.line.interfaces,
        warnings=warnings,
    )


def check(document: Document, file: _File) -> int:
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
        objects.one_of(document, path, value, allowed)
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


def _ranks(document: Document, role: str, replicas: _Replicas | None) -> pod.PodRanks:
    path = (*_REPLICAS, role, "template")
    if replicas is None or replicas.template is None:
        raise document.error(path, "is missing: its spec has the containers")
    return pod.ranks(document, path, replicas.template)
