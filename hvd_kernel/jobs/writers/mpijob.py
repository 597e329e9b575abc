"""MPIJob of Kubeflow's MPI Operator, kubeflow.org/v2beta1: hvdrun in the launcher's pod reaches the workers by ssh.

Source: https://github.com/kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go and pkg/apis/kubeflow/validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_kernel.jobs import lines
from hvd_kernel.jobs.spec import JobSpec, Replica, Resources
from hvd_kernel.jobs.writers import common, kubernetes
from hvd_kernel.jobs.writers.options import WriterOptions

LAUNCHERS = ("launcher", "master")
"""Roles of a first replica that starts the ranks of all replicas and runs ranks itself."""


def write(spec: JobSpec, options: WriterOptions) -> str:
    """Return the object.

    Raises
    ------
    JobError
        The job has no image or no steps, its workers differ, or its name is invalid for the operator.
    """
    shape = common.Shape(spec)
    leads = shape.replicas[0].role in LAUNCHERS
    workers = shape.replicas[leads:]
    name = kubernetes.checked_name(spec, f"-worker-{max(1, len(workers)) - 1}", "MPIJob")
    slots = common.alike([_slots_only(replica) for replica in shape.replicas], "MPIJob").slots
    if workers:
        common.alike(workers, "MPIJob")
    specs = {"Launcher": _launcher(spec, shape, leads, options)}
    if workers:
        specs["Worker"] = _replicas(len(workers), _worker(spec, workers[0]), workers[0], options)
    body: dict[str, Any] = {"slotsPerWorker": slots}
    body |= {"runLauncherAsWorker": True} if leads else {}
    body |= {"launcherCreationPolicy": "WaitForWorkersReady", "mpiImplementation": "OpenMPI"}
    body |= {"runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0}, "mpiReplicaSpecs": specs}
    manifest = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": name}, "spec": body}
    notes = [*shape.notes, *common.lost(spec, "Kubernetes"), *common.taken_over(spec), *rendezvous_notes(spec)]
    notes += common.kept_secret(spec, "hvdrun makes one for each run")
    notes.append("the image needs sshd for the workers and ssh for the launcher")
    logs = f"  kubectl apply -f FILE && kubectl logs -f -l training.kubeflow.org/job-name={name},"
    how = [f"{logs}training.kubeflow.org/job-role=launcher"]
    return common.head(f"{shape.counted('pod')}, by Kubeflow's MPI Operator", how, notes) + kubernetes.dumped(
        [manifest]
    )


def rendezvous_notes(spec: JobSpec) -> list[str]:
    """Return a sentence about the job's rendezvous address, which is not used, if there is one."""
    rendezvous = spec.rendezvous
    return [f"the ranks meet where hvdrun says, and not at {rendezvous.host}"] if rendezvous else []


def _slots_only(replica: Replica) -> Replica:
    return Replica(replica.role, replica.index, slots=replica.slots)


def _launcher(spec: JobSpec, shape: common.Shape, leads: bool, options: WriterOptions) -> dict[str, Any]:
    script = lines.script(common.steps(spec), shape.np, spec.interfaces)
    required = shape.replicas[0].resources if leads else Resources()
    ranks = kubernetes.container(
        "launcher",
        spec,
        required,
        **kubernetes.shell(script),
        workingDir=common.whole(spec.workdir, "workdir"),
        env=kubernetes.environment(spec, {}, ("K_MPI_JOB_ROLE",)),
    )
    return _replicas(1, ranks, shape.replicas[0], options)


def _worker(spec: JobSpec, worker: Replica) -> dict[str, Any]:
    return kubernetes.container("worker", spec, worker.resources)


def _replicas(count: int, container: dict[str, Any], like: Replica, options: WriterOptions) -> dict[str, Any]:
    volumes = kubernetes.volumes(common.shm_bytes(like, options))
    pod: dict[str, Sequence[Any]] = {"containers": [container], "volumes": volumes}
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}
