"""Indexed Job for Kubernetes, with a headless Service and a Secret, without operator, ssh and launcher pod.

Every pod runs the same hvdrun command, which starts the pod's ranks; the rendezvous is at pod 0, NAME-0.NAME. Source:
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
"""

from __future__ import annotations

from typing import Any

from hvd_kernel.jobs import lines
from hvd_kernel.jobs.spec import JobSpec
from hvd_kernel.jobs.writers import common, kubernetes
from hvd_kernel.jobs.writers.options import WriterOptions

_INSTANCE = "app.kubernetes.io/instance"


def write(spec: JobSpec, options: WriterOptions) -> str:
    """Return the objects.

    Raises
    ------
    JobError
        The job has no image or no steps, its pods differ, or its name is invalid in Kubernetes.
    """
    shape = common.Shape(spec)
    pods = len(shape.replicas)
    name = kubernetes.checked_name(spec, f"-{pods - 1}", "Job")
    port = options.port or (spec.rendezvous.port if spec.rendezvous else 0) or common.PORT
    variables = {"HVD_JOB_NAME": name, "HVD_JOB_SERVICE": name, "HVD_JOB_SIZE": str(pods), "HVD_JOB_PORT": str(port)}
    variables["HVD_JOB_SLOTS"] = str(shape.filled("Job", "pod"))
    objects = [_service(name, port), _job(spec, shape, name, variables, options)]
    notes = [*shape.notes, *common.lost(spec, "Kubernetes"), *common.taken_over(spec)]
    notes += [*common.kept_secret(spec, f"the Secret {name}-secret has it"), *_moved(spec, name)]
    how = [f"  kubectl apply -f FILE && kubectl logs -f -l {_INSTANCE}={name} --prefix --max-log-requests {pods}"]
    if options.secret:
        objects.insert(0, _secret(name, common.whole(options.secret, "secret")))
    else:
        how.insert(0, f"  {_BY_HAND.format(name=name)}")
    return common.head(f"{shape.counted('pod')}, without an operator", how, notes) + kubernetes.dumped(objects)


_BY_HAND = "kubectl create secret generic {name}-secret --from-literal=HVD_SECRET_KEY=$(openssl rand -hex 32)"


def _secret(name: str, value: str) -> dict[str, Any]:
    meta = {"name": f"{name}-secret"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta,
        "type": "Opaque",
        "stringData": {"HVD_SECRET_KEY": value},
    }


def _service(name: str, port: int) -> dict[str, Any]:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {_INSTANCE: name}}
    ports = [{"name": "rendezvous", "port": port}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {**spec, "ports": ports}}


def _job(
    spec: JobSpec, shape: common.Shape, name: str, hvd_variables: dict[str, str], options: WriterOptions
) -> dict[str, Any]:
    pods, replica = len(shape.replicas), shape.replicas[0]
    variables = kubernetes.environment(spec, hvd_variables, ("JOB_COMPLETION_INDEX",))
    reference = {"secretKeyRef": {"name": f"{name}-secret", "key": "HVD_SECRET_KEY"}}
    variables.append({"name": "HVD_SECRET_KEY", "valueFrom": reference})
    script = lines.script(common.steps(spec), 0, spec.interfaces, parts=pods)
    ranks = kubernetes.container(
        "ranks",
        spec,
        replica.resources,
        **kubernetes.shell(script),
        workingDir=common.whole(spec.workdir, "workdir"),
        env=variables,
    )
    pod = {"subdomain": name, "restartPolicy": "Never", "containers": [ranks]}
    pod["volumes"] = kubernetes.volumes(common.shm_bytes(replica, options))
    template = {"metadata": {"labels": {_INSTANCE: name}}, "spec": pod}
    job = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "backoffLimit": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**job, "template": template},
    }


def _moved(spec: JobSpec, name: str) -> list[str]:
    first_pod = f"{name}-0.{name}"
    moved = spec.rendezvous is not None and spec.rendezvous.host != first_pod
    return (
        [f"the ranks meet at {first_pod}, the first pod, and not at {spec.rendezvous.host}"]
        if moved and spec.rendezvous
        else []
    )
