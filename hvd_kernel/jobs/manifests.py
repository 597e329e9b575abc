"""Objects of Kubernetes and of a swarm around the containers of a job, as our writers write them. Pure.

A reader compares the objects of a file with these: what is equal is ours or our default, the rest is the user's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvd_kernel.jobs.spec import Bounds, Replica, binary

Manifest = dict[str, Any]

GPU = "nvidia.com/gpu"
INSTANCE = "app.kubernetes.io/instance"
RUNTIME = "deepspeed-distributed"
SHM_FOLDER = "/dev/shm"  # noqa: S108 - inside the container
SHM = {"name": "shm", "mountPath": SHM_FOLDER}
RANKS, LAUNCHER, WORKER = "ranks", "launcher", "worker"
"""Names of the containers."""
_GIBIBYTE = 2**30


def top(bounds: Bounds) -> float | None:
    """Return the limit, or the request if there is no limit."""
    return bounds.request if bounds.limit is None else bounds.limit


def shm_bytes(replica: Replica) -> int:
    """Return the default size of a replica's /dev/shm: half of its memory, or a gibibyte per rank."""
    memory = top(replica.resources.memory_bytes)
    return int(memory) // 2 if memory else replica.slots * _GIBIBYTE


def volumes(size_bytes: int) -> list[Manifest]:
    """Return a volume in memory for /dev/shm, which has 64 MiB by default."""
    return [{"name": SHM["name"], "emptyDir": {"medium": "Memory", "sizeLimit": binary(size_bytes)}}]


def container(name: str, **fields: Any) -> Manifest:
    """Return a container with /dev/shm, without empty fields."""
    row = {"name": name, **fields, "volumeMounts": [SHM]}
    return {key: value for key, value in row.items() if value or value == 0}


def indexed_job(name: str, pods: int, ranks: Mapping[str, Any], size_bytes: int) -> Manifest:
    """Return an Indexed Job; ``ranks`` is the container of its pods, ``size_bytes`` that of /dev/shm."""
    pod = {"subdomain": name, "restartPolicy": "Never", "containers": [ranks], "volumes": volumes(size_bytes)}
    template = {"metadata": {"labels": {INSTANCE: name}}, "spec": pod}
    job = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {**job, "template": template}}


def network_policy(name: str, label: str) -> Manifest:
    """Return a NetworkPolicy: pods whose ``INSTANCE`` is ``label`` accept connections of each other only."""
    pods = {"matchLabels": {INSTANCE: label}}
    rules = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]}
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
    return {**head, "spec": rules}


def kustomization(files: Sequence[str]) -> Manifest:
    """Return the list of a base's files, as kustomize reads it."""
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [*files]}


def mpijob(name: str, slots: int, pods: Mapping[str, Manifest], *, leads: bool) -> Manifest:
    """Return an MPIJob; ``pods`` are its replicas by role, ``leads``: the launcher's pod has ranks too."""
    body: Manifest = {"slotsPerWorker": slots}
    body |= {"runLauncherAsWorker": True} if leads else {}
    body |= {"launcherCreationPolicy": "WaitForWorkersReady", "mpiImplementation": "OpenMPI"}
    body |= {"runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0}, "mpiReplicaSpecs": dict(pods)}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": name}, "spec": body}


def mpijob_replicas(count: int, ranks: Mapping[str, Any], size_bytes: int) -> Manifest:
    """Return the replicas of a role of an MPIJob."""
    pod = {"containers": [ranks], "volumes": volumes(size_bytes)}
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}


def trainjob(name: str, runtime: str, trainer: Mapping[str, Any]) -> Manifest:
    """Return a TrainJob of a ClusterTrainingRuntime."""
    body = {"runtimeRef": {"name": runtime}, "trainer": trainer}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": body}


def stack_service(tasks: int, size_bytes: int) -> Manifest:
    """Return a swarm's service without its container's fields; ``size_bytes`` is the size of /dev/shm."""
    return {
        "networks": ["ranks"],
        "secrets": ["hvd_secret_key"],
        "volumes": [{"type": "tmpfs", "target": SHM_FOLDER, "tmpfs": {"size": size_bytes}}],
        "deploy": {"mode": "replicated", "replicas": tasks, "restart_policy": {"condition": "none"}},
    }


def is_stack_shm(volume: Any) -> bool:
    """Return whether a volume of a swarm's service is mounted at /dev/shm."""
    return isinstance(volume, dict) and volume.get("target") == SHM_FOLDER


def stack(name: str, service: Mapping[str, Any]) -> Manifest:
    """Return a stack of a single service on an overlay network."""
    return {
        "version": "3.8",
        "services": {name: service},
        "networks": {"ranks": {"driver": "overlay"}},
        "secrets": {"hvd_secret_key": {"external": True, "name": f"{name}_hvd_secret_key"}},
    }
