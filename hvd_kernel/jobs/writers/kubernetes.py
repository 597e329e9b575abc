"""Kubernetes objects as text, and manifests of jobs.

  indexed Job  with a headless Service and a Secret, without operator, ssh and launcher pod; every pod runs the same
               hvdrun command, which starts the pod's ranks; the rendezvous is at pod 0, NAME-0.NAME
  MPIJob       of Kubeflow's MPI Operator: hvdrun in the launcher's pod reaches the workers by ssh
  TrainJob     of Kubeflow Trainer v2: hvdrun in the launcher of an mpi runtime

Sources: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode ;
https://github.com/kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go and pkg/apis/kubeflow/validation ;
https://github.com/kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go; JobSet's names of pods.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped,unused-ignore]

from hvd_kernel.jobs import manifests, platform_fields, shell_lines
from hvd_kernel.jobs.manifests import GPU, INSTANCE, SHM_FOLDER, Manifest
from hvd_kernel.jobs.platform_fields import GPU_RESOURCE, OBJECTS, SETUP, SHELL
from hvd_kernel.jobs.readers import kubernetes
from hvd_kernel.jobs.spec import SECRETS, Bounds, JobError, JobSpec, PlatformField, Replica, Resources, binary, cores
from hvd_kernel.jobs.writers import common
from hvd_kernel.jobs.writers.common import WriterOptions, Written, whole

_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*", re.ASCII)
_DOLLARS = re.compile(r"\$+(?=\()|\$\$+")
_SAFE = re.compile(r"[A-Za-z/][\w ./:=,@+-]*[\w/.]", re.ASCII)
_MILLI = 1000
_SHELL = ("/bin/sh", "-ec")


def checked_name(spec: JobSpec, last: str, kind: str) -> str:
    """Return the job's name after checking it together with the suffix of its last pod.

    Raises
    ------
    JobError
        The name, or that of the pod, is invalid in Kubernetes.
    """
    name = spec.name or "hvd"
    problem = kubernetes.label_mistake(name, last, kind)
    if problem:
        raise JobError(f"name: {problem}.")
    return name


def escaped(text: str) -> str:
    """Escape a text for Kubernetes, which expands $(NAME) and replaces $$ by $."""
    return _DOLLARS.sub(lambda match: match[0] * 2, text)


def resources(required: Resources, gpu: str = GPU) -> dict[str, dict[str, str | int]]:
    """Return requests and limits; devices are limits, which are also requests in Kubernetes."""
    amounts_by_side: dict[str, dict[str, str | int]] = {"requests": {}, "limits": {}}
    for side, which in (("requests", "request"), ("limits", "limit")):
        for name, bounds, shown in (("cpu", required.cpu, _cores), ("memory", required.memory_bytes, _bytes)):
            value = _side(bounds, which)
            if value is not None:
                amounts_by_side[side][name] = shown(value)
    if required.gpus is not None:
        amounts_by_side["limits"][gpu] = required.gpus
    return {side: amounts for side, amounts in amounts_by_side.items() if amounts}


def environment(spec: JobSpec, hvd_variables: dict[str, str], others: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the variables of ``hvd_variables`` and of the job; the variables ``others`` are set by the platform.

    Raises
    ------
    JobError
        A name is invalid in Kubernetes, or already set.
    """
    for variable in spec.environment:
        if variable.name in (*hvd_variables, *others):
            raise JobError(f"environment: {variable.name} has another meaning there: leave it out.")
        if not _VARIABLE.fullmatch(variable.name):
            raise JobError(f"environment: Kubernetes takes no variable {variable.name!r}: rename it, or leave it out.")
    of_job = {
        variable.name: variable.value
        for variable in spec.environment
        if variable.value is not None and variable.name not in SECRETS
    }
    return [{"name": name, "value": escaped(value)} for name, value in (hvd_variables | of_job).items()]


def container(name: str, spec: JobSpec, required: Resources, **more: Any) -> Manifest:
    """Return a container with the job's image, without empty fields.

    Raises
    ------
    JobError
        The job has no image.
    """
    if not spec.image:
        raise JobError("image: a container needs one that has hvd_kernel in it: give it.")
    gpu = next(iter(platform_fields.values(spec, GPU_RESOURCE)), GPU)
    return manifests.container(name, image=whole(spec.image, "image"), **more, resources=resources(required, gpu))


def shell(script: str, spec: JobSpec) -> Manifest:
    """Return the command of a container that runs a script, by default up to the first line that fails."""
    command = next(iter(platform_fields.values(spec, SHELL)), _SHELL)
    return {"command": [*command], "args": [escaped(script)]}


def script(spec: JobSpec, np: int, *, parts: int = 1, workdir: str = "") -> str:
    """Return the script of a container: lines that run once, then hvdrun for each step."""
    setup = [whole(line, SETUP) for line in platform_fields.setup(spec)]
    steps = common.steps(spec)
    return shell_lines.script(steps, np, spec.interfaces, parts=parts, workdir=workdir, setup=setup)


def apply_settings(
    spec: JobSpec, kind: str, manifest: Manifest, options: WriterOptions, *, workers: bool = True
) -> list[str]:
    """Put the job's settings into an object; return a sentence for each that it cannot have.

    Raises
    ------
    JobError
        A volume has the name of ours.
    """
    carried = platform_fields.fields(spec, (SETUP, SHELL, GPU_RESOURCE, OBJECTS))
    for field in spec.platform_fields:
        paths = platform_fields.paths(kind, field, spec.kind, workers=workers)
        for path in paths:
            platform_fields.put(manifest, path, _without_shm(field) if options.shm_bytes else field.value)
        carried += [field] if paths else []
    for place in (place for name, place in platform_fields.PLACES[kind].items() if name.endswith("pod")):
        pod = platform_fields.at(manifest, place)
        if pod:
            _use_one_shm(pod)
    return platform_fields.losses(spec, kind, carried)


def _without_shm(field: PlatformField) -> Any:
    if field.name.rpartition(".")[2] != "volumeMounts":
        return field.value
    return [mount for mount in field.value if mount.get("mountPath") != SHM_FOLDER]


def _use_one_shm(pod: Manifest) -> None:
    """Remove our /dev/shm from a pod whose file mounts another volume there."""
    first = pod["containers"][0]
    mounts, name = first.get("volumeMounts", []), manifests.SHM["name"]
    if sum(mount.get("mountPath") == SHM_FOLDER for mount in mounts) > 1:
        mounts.remove(manifests.SHM)
        pod["volumes"] = pod["volumes"][1:]
    elif sum(volume.get("name") == name for volume in pod.get("volumes", [])) > 1:
        raise JobError(
            f"volumes: {name!r} is the name of the volume for {SHM_FOLDER}: rename yours, or mount it there."
        )


def with_others(spec: JobSpec, objects: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return objects after the other ones of the job's file; ours replace those of the same kind and name."""
    ours = {(item["kind"], item["metadata"]["name"]) for item in objects}
    others = platform_fields.values(spec, OBJECTS)
    return [*(item for item in others if (item["kind"], item["metadata"]["name"]) not in ours), *objects]


def dumped(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return objects as YAML documents."""
    text: str = yaml.dump_all([dict(item) for item in objects], Dumper=_Dumper, sort_keys=False, width=100_000)
    return text


def _side(bounds: Bounds, which: str) -> float | None:
    value: float | None = getattr(bounds, which)
    return value


def _cores(number: float) -> str:
    """Return cores, rounded up to Kubernetes' unit of a thousandth."""
    return cores(number if number == int(number) else math.ceil(round(number * _MILLI, 6)) / _MILLI)


def _bytes(number: float) -> str:
    return binary(math.ceil(number))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc,unused-ignore]
    """Quotes every text that a YAML parser could read as a number or a boolean: y, 1e3, 0o7."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None if _SAFE.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


class IndexedJob(NamedTuple):
    """The objects of an Indexed Job besides those of the job's file, and the sentences about them.

    ``label`` is the value of ``manifests.INSTANCE`` that its pods have.
    """

    name: str
    label: str
    objects: list[Manifest]
    summary: str
    how: list[str]
    losses: list[str]
    notes: list[str]


def indexed_job(spec: JobSpec, options: WriterOptions, apply: str) -> IndexedJob:
    """Return a Secret, a headless Service and an Indexed Job; ``apply`` is the command that submits them.

    Raises
    ------
    JobError
        The job has no image or no steps, its pods differ, or its name is invalid in Kubernetes.
    """
    shape = common.Shape(spec)
    pods = len(shape.replicas)
    name = checked_name(spec, f"-{pods - 1}", "Job")
    port = options.port or (spec.rendezvous.port if spec.rendezvous else 0) or common.PORT
    variables = {"HVD_JOB_NAME": name, "HVD_JOB_SERVICE": name, "HVD_JOB_SIZE": str(pods), "HVD_JOB_PORT": str(port)}
    variables["HVD_JOB_SLOTS"] = str(shape.filled("Job", "pod"))
    job = _indexed_job(spec, shape, name, variables, options)
    left_out = apply_settings(spec, "job", job, options)
    label = job["spec"]["template"]["metadata"]["labels"][INSTANCE]  # of the job's file, if that has one
    objects = [_service(name, label, port), job]
    losses = [*shape.notes, *common.lost(spec, "Kubernetes"), *common.taken_over(spec), *left_out]
    notes = [*common.kept_secret(spec, f"the Secret {name}-secret has it"), *_moved(spec, name)]
    how = [f"  {apply} && kubectl logs -f -l {INSTANCE}={label} --prefix --max-log-requests {pods}"]
    if options.secret:
        objects.insert(0, _secret(name, common.whole(options.secret, "secret")))
    else:
        how.insert(0, f"  {_BY_HAND.format(name=name)}")
    if namespace := job["metadata"].get("namespace"):
        for item in objects:
            item["metadata"]["namespace"] = namespace
    summary = f"{shape.counted('pod')}, without an operator"
    return IndexedJob(name, label, objects, summary, _in_namespace(how, job), losses, notes)


def write_indexed_job(spec: JobSpec, options: WriterOptions) -> Written:
    """Return the objects.

    Raises
    ------
    JobError
        See ``indexed_job``.
    """
    job = indexed_job(spec, options, "kubectl apply -f FILE")
    head = common.head(job.summary, job.how, [*job.losses, *job.notes])
    return Written(head + dumped(with_others(spec, job.objects)), common.on_one_line(job.losses))


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


def _service(name: str, label: str, port: int) -> dict[str, Any]:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {INSTANCE: label}}
    ports = [{"name": "rendezvous", "port": port}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {**spec, "ports": ports}}


def _indexed_job(
    spec: JobSpec, shape: common.Shape, name: str, hvd_variables: dict[str, str], options: WriterOptions
) -> dict[str, Any]:
    pods, replica = len(shape.replicas), shape.replicas[0]
    variables = environment(spec, hvd_variables, ("JOB_COMPLETION_INDEX",))
    reference = {"secretKeyRef": {"name": f"{name}-secret", "key": "HVD_SECRET_KEY"}}
    variables.append({"name": "HVD_SECRET_KEY", "valueFrom": reference})
    ranks = container(
        manifests.RANKS,
        spec,
        replica.resources,
        **shell(script(spec, 0, parts=pods), spec),
        workingDir=common.whole(spec.workdir, "workdir"),
        env=variables,
    )
    return manifests.indexed_job(name, pods, ranks, common.shm_bytes(replica, options))


def _moved(spec: JobSpec, name: str) -> list[str]:
    first_pod = f"{name}-0.{name}"
    moved = spec.rendezvous is not None and spec.rendezvous.host != first_pod
    return (
        [f"the ranks meet at {first_pod}, the first pod, and not at {spec.rendezvous.host}"]
        if moved and spec.rendezvous
        else []
    )


LAUNCHERS = ("launcher", "master")
"""Roles of a first replica that starts the ranks of all replicas and runs ranks itself."""


def write_mpijob(spec: JobSpec, options: WriterOptions) -> Written:
    """Return the object.

    Raises
    ------
    JobError
        The job has no image or no steps, its workers differ, or its name is invalid for the operator.
    """
    shape = common.Shape(spec)
    leads = shape.replicas[0].role in LAUNCHERS
    workers = shape.replicas[leads:]
    name = checked_name(spec, f"-worker-{max(1, len(workers)) - 1}", "MPIJob")
    slots = common.alike([_slots_only(replica) for replica in shape.replicas], "MPIJob").slots
    if workers:
        common.alike(workers, "MPIJob")
    specs = {"Launcher": _launcher(spec, shape, leads, options)}
    if workers:
        specs["Worker"] = _worker(spec, len(workers), workers[0], options)
    manifest = manifests.mpijob(name, slots, specs, leads=leads)
    left_out = apply_settings(spec, "mpijob", manifest, options, workers=bool(workers))
    losses = [*shape.notes, *common.lost(spec, "Kubernetes"), *common.taken_over(spec), *left_out]
    notes = rendezvous_notes(spec)
    notes += common.kept_secret(spec, "hvdrun makes one for each run")
    notes.append("the image needs sshd for the workers and ssh for the launcher")
    logs = f"  kubectl apply -f FILE && kubectl logs -f -l training.kubeflow.org/job-name={name},"
    how = _in_namespace([f"{logs}training.kubeflow.org/job-role=launcher"], manifest)
    head = common.head(f"{shape.counted('pod')}, by Kubeflow's MPI Operator", how, [*losses, *notes])
    return Written(head + dumped(with_others(spec, [manifest])), common.on_one_line(losses))


def _in_namespace(commands: Sequence[str], manifest: Manifest) -> list[str]:
    namespace = manifest["metadata"].get("namespace")
    return [line.replace("kubectl ", f"kubectl -n {namespace} ") if namespace else line for line in commands]


def rendezvous_notes(spec: JobSpec) -> list[str]:
    """Return a sentence about the job's rendezvous address, which is not used, if there is one."""
    rendezvous = spec.rendezvous
    return [f"the ranks meet at the address of hvdrun, not at {rendezvous.host}"] if rendezvous else []


def _slots_only(replica: Replica) -> Replica:
    return Replica(replica.role, replica.index, slots=replica.slots)


def _launcher(spec: JobSpec, shape: common.Shape, leads: bool, options: WriterOptions) -> Manifest:
    required = shape.replicas[0].resources if leads else Resources()
    ranks = container(
        manifests.LAUNCHER,
        spec,
        required,
        **shell(script(spec, shape.np), spec),
        workingDir=common.whole(spec.workdir, "workdir"),
        env=environment(spec, {}, ("K_MPI_JOB_ROLE",)),
    )
    return manifests.mpijob_replicas(1, ranks, common.shm_bytes(shape.replicas[0], options))


def _worker(spec: JobSpec, count: int, worker: Replica, options: WriterOptions) -> Manifest:
    ranks = container(manifests.WORKER, spec, worker.resources)
    return manifests.mpijob_replicas(count, ranks, common.shm_bytes(worker, options))


_LAUNCHER = "-launcher-0-0"
MOST_IMAGE, MOST_TEXT, MOST_VARIABLES = 500, 65_536, 128


def write_trainjob(spec: JobSpec, options: WriterOptions) -> Written:
    """Return the object.

    Raises
    ------
    JobError
        The job has no steps, its replicas differ, or a value is invalid for the Trainer.
    """
    shape = common.Shape(spec)
    nodes = len(shape.replicas)
    name = checked_name(spec, max(_LAUNCHER, f"-node-0-{nodes - 1}", key=len), "TrainJob")
    trainer: dict[str, Any] = {"image": common.whole(spec.image, "image")} if spec.image else {}
    trainer |= shell(script(spec, shape.np, workdir=spec.workdir), spec)
    trainer |= _filled("env", environment(spec, {}))
    first = shape.alike("TrainJob")
    trainer |= {"numNodes": nodes, "numProcPerNode": first.slots}
    gpu = next(iter(platform_fields.values(spec, GPU_RESOURCE)), GPU)
    trainer |= _filled("resourcesPerNode", resources(first.resources, gpu))
    manifest = manifests.trainjob(name, manifests.RUNTIME, trainer)
    left_out = apply_settings(spec, "trainjob", manifest, options)
    if options.runtime:
        manifest["spec"]["runtimeRef"] = {"name": options.runtime}
    _check(trainer)
    losses = [*shape.notes, *common.lost(spec, "Kubernetes"), *common.taken_over(spec), *left_out]
    notes = rendezvous_notes(spec)
    notes += common.kept_secret(spec, "hvdrun makes one for each run")
    runtime = manifest["spec"]["runtimeRef"]["name"]
    notes.append(f"the runtime {runtime} must have an mpi policy, its nodes hvd_kernel and memory for /dev/shm")
    how = _in_namespace(
        [f"  kubectl apply -f FILE && kubectl logs -f -l jobset.sigs.k8s.io/jobset-name={name}"], manifest
    )
    head = common.head(f"{shape.counted('node')}, by Kubeflow's Trainer", how, [*losses, *notes])
    return Written(head + dumped(with_others(spec, [manifest])), common.on_one_line(losses))


def _check(trainer: dict[str, Any]) -> None:
    problems = {
        f"image: the Trainer takes at most {MOST_IMAGE} characters": len(trainer.get("image", "")) > MOST_IMAGE,
        f"steps: the Trainer takes at most {MOST_TEXT} characters; put them into a script of the image": any(
            len(argument) > MOST_TEXT for argument in trainer["args"]
        ),
        f"environment: the Trainer takes at most {MOST_VARIABLES} variables": len(trainer.get("env", ()))
        > MOST_VARIABLES,
    }
    problem = next((sentence for sentence, holds in problems.items() if holds), "")
    if problem:
        raise JobError(f"{problem}.")


def _filled(name: str, value: Any) -> dict[str, Any]:
    return {name: value} if value else {}
