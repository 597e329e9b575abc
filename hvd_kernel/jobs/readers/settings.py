"""Settings of Kubernetes' objects and of stack files: all that a JobSpec has no field of its own for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hvd_kernel.jobs import manifests
from hvd_kernel.jobs.platform_fields import (
    GPU_RESOURCE,
    LAUNCHER,
    OBJECTS,
    PLACES,
    WORKER,
    ObjectPath,
    at,
    settings_of,
)
from hvd_kernel.jobs.spec import SECRETS, PlatformField, Replica

GPU_NAME = re.compile(r"[\w.-]+/gpu", re.ASCII)
"""Names of the resources that count as GPUs."""
FROM_CLUSTER = "only the cluster has its value"
_REFERENCE = re.compile(r"(?<!\$)(?:\$\$)*\$\([-._a-zA-Z]", re.ASCII)
_IGNORED = {
    "pod.initContainers": "what they prepare must already exist",
    "pod.nodeSelector": "the plan does not choose nodes",
    "pod.affinity": "the plan does not choose nodes",
}
_CONTAINER = {"image", "command", "args", "env", "resources", "workingDir"}
_METADATA = {"name", "generateName"}


def is_of_cluster(variable: Mapping[str, Any]) -> bool:
    """Return whether only the cluster knows the value of a container's variable."""
    value = variable.get("value")
    return variable.get("valueFrom") is not None or (isinstance(value, str) and _REFERENCE.search(value) is not None)


def of_job(manifest: Mapping[str, Any], name: str, replicas: tuple[Replica, ...]) -> Iterator[PlatformField]:
    """Yield the settings of an Indexed Job."""
    shm = manifests.shm_bytes(replicas[0])
    skeleton = manifests.indexed_job(name, len(replicas), manifests.container(manifests.RANKS), shm)
    read = {"metadata": _METADATA, "container": _CONTAINER, "pod": {"containers"}}
    if not at(manifest, ("spec", "manualSelector")):
        read["job"] = {"selector"}  # set by the controller
    template = PLACES["job"]["pod"]
    yield from settings_of("job", manifest, skeleton, _with(read, "job", _JOB), _ignored(manifest, "", template))
    yield from _generated(manifest)
    yield from _of_pod(manifest, "", template)
    yield from _of_environment(manifest, template)
    path = (*template, "containers", 0)
    yield from _of_resources(at(manifest, path), path, "")


_JOB = {"completions", "parallelism", "completionMode"}
_MPIJOB = {"slotsPerWorker", "runLauncherAsWorker", "mpiReplicaSpecs"}


def of_mpijob(
    manifest: dict[str, Any], name: str, replicas: tuple[Replica, ...], *, image: str
) -> Iterator[PlatformField]:
    """Yield the settings of an MPIJob; ``image`` is that of the pods that have ranks."""
    specs = manifest["spec"]["mpiReplicaSpecs"]
    has_workers = "Worker" in specs
    leads = replicas[0].role == manifests.LAUNCHER
    worker = replicas[-1]
    skeleton = manifests.mpijob(
        name,
        worker.slots,
        {
            "Launcher": _pods(manifests.LAUNCHER, replicas[0]),
            "Worker": _pods(manifests.WORKER if has_workers else manifests.LAUNCHER, worker),
        },
        leads=leads,
    )
    if not has_workers:  # its settings are those of the pods with ranks
        specs = {"Worker": specs["Launcher"]}
        manifest = manifest | {"spec": manifest["spec"] | {"mpiReplicaSpecs": specs}}
    pod, launcher_pod = PLACES["mpijob"]["pod"], PLACES["mpijob"][f"{LAUNCHER}pod"]
    read = {
        "metadata": _METADATA,
        "mpijob": _MPIJOB,
        "pod": {"containers"},
        "container": _CONTAINER,
        f"{LAUNCHER}pod": {"containers"},
        f"{LAUNCHER}container": _CONTAINER | {"envFrom"},
    }
    if has_workers:
        read["container"] = _CONTAINER | {"envFrom"}
    ignored = _ignored(manifest, "", pod) | _ignored(manifest, LAUNCHER, launcher_pod)
    fields = [*settings_of("mpijob", manifest, skeleton, read, ignored), *_generated(manifest)]
    fields += [
        *_of_pod(manifest, "", pod),
        *_of_resources(at(manifest, (*pod, "containers", 0)), (*pod, "containers", 0), ""),
    ]
    if not has_workers:
        fields += _of_environment(manifest, pod)
        yield from (_moved(field) for field in fields)
        return
    fields += _of_pod(manifest, LAUNCHER, launcher_pod)
    fields += _of_environment(manifest, launcher_pod)
    fields += _of_both(manifest, image, pod, launcher_pod, leads=leads)
    yield from fields


def _pods(name: str, replica: Replica) -> manifests.Manifest:
    return manifests.mpijob_replicas(1, manifests.container(name), manifests.shm_bytes(replica))


def _of_both(
    manifest: Mapping[str, Any], image: str, pod: ObjectPath, launcher_pod: ObjectPath, *, leads: bool
) -> Iterator[PlatformField]:
    """Yield the settings of the containers of an MPIJob's launcher and workers that the others do not have."""
    path, launcher_path = (*pod, "containers", 0), (*launcher_pod, "containers", 0)
    worker, launcher = at(manifest, path), at(manifest, launcher_path)
    for key in ("command", "args", "env", "envFrom"):
        if worker.get(key):
            yield PlatformField(f"{WORKER}{key}", worker[key], _dotted((*path, key)))
    if launcher.get("envFrom"):
        yield PlatformField(
            "container.envFrom", launcher["envFrom"], _dotted((*launcher_path, "envFrom")), FROM_CLUSTER
        )
    if launcher.get("image", "") not in {image, ""}:
        yield PlatformField(f"{LAUNCHER}container.image", launcher["image"], _dotted((*launcher_path, "image")))
    if leads:
        yield from _of_resources(launcher, launcher_path, LAUNCHER)
    elif launcher.get("resources"):
        yield PlatformField(
            f"{LAUNCHER}container.resources", launcher["resources"], _dotted((*launcher_path, "resources"))
        )


def _moved(field: PlatformField) -> PlatformField:
    """Return a setting of the only pod of an MPIJob, with its position in the file."""
    return PlatformField(field.name, field.value, field.source.replace("Worker", "Launcher", 1), field.ignored)


def of_trainjob(manifest: Mapping[str, Any], name: str, ignored: Mapping[str, str]) -> Iterator[PlatformField]:
    """Yield the settings of a TrainJob; ``ignored`` has the fields without effect outside of the cluster."""
    trainer = {"image", "command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode"}
    read = {"metadata": _METADATA, "trainjob": {"trainer"}, "container": trainer}
    skeleton = manifests.trainjob(name, manifests.RUNTIME, {})
    notes = {f"trainjob.{key}": reason for key, reason in ignored.items()}
    yield from settings_of("trainjob", manifest, skeleton, read, notes)
    yield from _generated(manifest)
    path = PLACES["trainjob"]["container"]
    container = at(manifest, path) or {}
    yield from _variables(container.get("env"), path)
    yield from _of_resources(container, path, "", "resourcesPerNode")


def other_objects(values: Iterable[Mapping[str, Any]], ours: Iterable[tuple[str, str]]) -> Iterator[PlatformField]:
    """Yield the objects of a file besides the job; ``ours`` are the kinds and names of those that our writers add."""
    written = set(ours)
    for value in values:
        kind, name = str(value.get("kind", "object")), str((value.get("metadata") or {}).get("name", "?"))
        if (kind, name) not in written:
            yield PlatformField(OBJECTS, value, f"{kind} {name}")


def _with(read: Mapping[str, set[str]], group: str, keys: set[str]) -> dict[str, set[str]]:
    return {**read, group: read.get(group, set()) | keys}


def _generated(manifest: Mapping[str, Any]) -> Iterator[PlatformField]:
    generated = at(manifest, ("metadata", "generateName"))
    if generated:
        yield PlatformField("generate_name", generated, "metadata.generateName")


def _ignored(manifest: Mapping[str, Any], prefix: str, pod: ObjectPath) -> dict[str, str]:
    """Return why settings of a pod have no effect outside of the cluster."""
    reasons = {f"{prefix}{name}": reason for name, reason in _IGNORED.items()}
    volumes = at(manifest, (*pod, "volumes")) or []
    mounted = [str(volume.get("name", "?")) for volume in volumes if "emptyDir" not in volume]
    return reasons | ({f"{prefix}pod.volumes": f"{', '.join(mounted)} must already exist"} if mounted else {})


def _of_pod(manifest: Mapping[str, Any], prefix: str, pod: ObjectPath) -> Iterator[PlatformField]:
    """Yield the containers of a pod without ranks."""
    others = (at(manifest, (*pod, "containers")) or [])[1:]
    if others:
        source = f"{_dotted(pod)}.containers: {len(others)} beside the first"
        yield PlatformField(f"{prefix}pod.containers", others, source, "it has the ranks")


def _of_environment(manifest: Mapping[str, Any], pod: ObjectPath) -> Iterator[PlatformField]:
    path = (*pod, "containers", 0)
    yield from _variables(at(manifest, (*path, "env")), path)


def _variables(variables: Any, path: ObjectPath) -> Iterator[PlatformField]:
    for number, variable in enumerate(variables or []):
        if is_of_cluster(variable) and variable["name"] not in SECRETS:
            source = f"{_dotted((*path, 'env', number))}: {variable['name']}"
            yield PlatformField("container.env", [variable], source, FROM_CLUSTER)


def _of_resources(
    container: Mapping[str, Any], path: ObjectPath, prefix: str, key: str = "resources"
) -> Iterator[PlatformField]:
    """Yield the resources of a container besides cores, memory and GPUs."""
    resources = container.get(key) or {}
    sides = [resources.get(side) or {} for side in ("limits", "requests")]
    gpus = [name for side in sides for name in side if GPU_NAME.fullmatch(name)]
    if gpus[:1] and gpus[0] != manifests.GPU and not prefix:
        yield PlatformField(GPU_RESOURCE, gpus[0], _dotted((*path, key, "limits", gpus[0])))
    read = {"cpu", "memory", *gpus[:1]}
    rest = {
        name: {item: amount for item, amount in part.items() if item not in read} if isinstance(part, dict) else part
        for name, part in resources.items()
    }
    others = {name: part for name, part in rest.items() if part}
    if others:
        yield PlatformField(f"{prefix}container.resources", others, _dotted((*path, key)))


def _dotted(path: ObjectPath) -> str:
    return ".".join(map(str, path))


def of_stack(stack: Mapping[str, Any], name: str, replicas: tuple[Replica, ...]) -> Iterator[PlatformField]:
    """Yield the settings of a swarm's service, and of its stack."""
    services = stack["services"]
    skeleton = manifests.stack(name, manifests.stack_service(len(replicas), manifests.shm_bytes(replicas[0])))
    read = {
        "swarm": {"version"},
        "swarm.service": {"image", "entrypoint", "command", "working_dir", "environment"},
        "swarm.deploy": {"replicas", "resources"},
    }
    yield from settings_of("swarm", dict(stack) | {"services": {name: services[name]}}, skeleton, read)
    others = {key: service for key, service in services.items() if key != name}
    if others:
        yield PlatformField("swarm.services", others, f"services.{', '.join(others)}")
    resources = at(services[name], ("deploy", "resources")) or {}
    rest = {side: _other_amounts(amounts) for side, amounts in resources.items() if isinstance(amounts, dict)}
    rest = {side: amounts for side, amounts in rest.items() if amounts}
    if rest:
        yield PlatformField("swarm.deploy.resources", rest, f"services.{name}.deploy.resources")


def _other_amounts(amounts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the amounts besides cores, memory and GPUs."""
    devices = [
        device
        for device in amounts.get("generic_resources") or []
        if "gpu" not in str(at(device, ("discrete_resource_spec", "kind"))).lower()
    ]
    others = {key: value for key, value in amounts.items() if key not in {"cpus", "memory", "generic_resources"}}
    return others | ({"generic_resources": devices} if devices else {})
