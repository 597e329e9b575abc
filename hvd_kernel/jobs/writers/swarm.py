"""Docker stack file for a swarm: a service whose tasks run hvdrun on an overlay network, with a /dev/shm of known size.

Notes on the format: $NAME is expanded (``$$`` stands for $), swarm expands {{...}} in environments, and /dev/shm of a
service has 64 MiB unless memory is mounted there.
Source: https://docs.docker.com/reference/compose-file/ and docker/cli's schema of version 3.8.
"""

from __future__ import annotations

import math
import re
from typing import Any

from hvd_kernel.jobs import manifests, platform_fields, shell_lines
from hvd_kernel.jobs.spec import SECRETS, Bounds, JobError, JobSpec, Resources, binary
from hvd_kernel.jobs.writers import common, kubernetes
from hvd_kernel.jobs.writers.common import WriterOptions, Written

GPU = "NVIDIA-GPU"
_KEY = "HVD_SECRET_KEY=$(cat /run/secrets/hvd_secret_key)\nexport HVD_SECRET_KEY\n"
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}", re.ASCII)
_VARIABLE = re.compile(r"[^=\s\0]+")


def write(spec: JobSpec, options: WriterOptions) -> Written:
    """Return the stack file.

    Raises
    ------
    JobError
        The job has no image or no steps, its tasks differ, or its name is invalid for a service.
    """
    shape = common.Shape(spec)
    name = spec.name or "hvd"
    if not _NAME.fullmatch(name):
        raise JobError(f"name: {name!r} is not a service's name: letters, digits, dots, dashes, at most 63.")
    service = _service(spec, shape, options)
    stack = manifests.stack(name, service)
    left_out = _apply_settings(spec, stack, options)
    losses = [*shape.notes, *common.lost(spec, "the swarm"), *common.taken_over(spec), *left_out]
    notes = [*_moved(spec, name)]
    notes += common.kept_secret(spec, "the swarm's secret has it")
    if shape.replicas[0].resources.gpus:
        notes.append(f"nodes must announce their GPUs: node-generic-resources {GPU}=UUID in Docker's daemon.json")
    how = [
        f"  openssl rand -hex 32 | docker secret create {name}_hvd_secret_key -",
        f"  docker stack deploy -c FILE {name} && docker service logs -f {name}_{name}",
    ]
    head = common.head(f"{shape.counted('task')}, of a Docker swarm's service", how, [*losses, *notes])
    return Written(head + kubernetes.dumped([stack]), common.on_one_line(losses))


def _apply_settings(spec: JobSpec, stack: manifests.Manifest, options: WriterOptions) -> list[str]:
    carried = platform_fields.fields(spec, (platform_fields.SETUP, platform_fields.SHELL))
    for field in spec.platform_fields:
        for path in platform_fields.paths("swarm", field, spec.kind):
            platform_fields.put(stack, path, field.value)
            carried.append(field)
    volumes = stack["services"][next(iter(stack["services"]))]["volumes"]
    if sum(manifests.is_stack_shm(volume) for volume in volumes) > 1:
        volumes.remove(next(filter(manifests.is_stack_shm, volumes if not options.shm_bytes else volumes[::-1])))
    return platform_fields.losses(spec, "swarm", carried)


def _service(spec: JobSpec, shape: common.Shape, options: WriterOptions) -> dict[str, Any]:
    if not spec.image:
        raise JobError("image: a task needs one that has hvd_kernel in it: give it.")
    tasks, replica = len(shape.replicas), shape.alike("swarm service")
    script = shell_lines.script(common.steps(spec), 0, spec.interfaces, parts=tasks, setup=platform_fields.setup(spec))
    shell = next(iter(platform_fields.values(spec, platform_fields.SHELL)), ("/bin/sh", "-ec"))
    service: dict[str, Any] = {"image": escaped(common.whole(spec.image, "image"))}
    service |= {"entrypoint": [*shell], "command": [escaped(common.whole(_KEY + script, "setup"))]}
    service |= {"working_dir": escaped(common.whole(spec.workdir, "workdir"))} if spec.workdir else {}
    service |= {"environment": _environment(spec, shape, options)}
    skeleton = manifests.stack_service(tasks, common.shm_bytes(replica, options))
    return service | skeleton | {"deploy": skeleton["deploy"] | _resources(replica.resources)}


def _environment(spec: JobSpec, shape: common.Shape, options: WriterOptions) -> dict[str, str]:
    hvd_variables = {"HVD_SWARM_SERVICE": "{{.Service.Name}}", "HVD_SWARM_SLOT": "{{.Task.Slot}}"}
    port = options.port or (spec.rendezvous.port if spec.rendezvous else 0) or common.PORT
    hvd_variables |= {
        "HVD_JOB_SIZE": str(len(shape.replicas)),
        "HVD_JOB_SLOTS": str(shape.filled("swarm service", "task")),
    }
    hvd_variables["HVD_JOB_PORT"] = str(port)
    for variable in spec.environment:
        if variable.name in hvd_variables:
            raise JobError(f"environment: {variable.name} has another meaning there: leave it out.")
        if not _VARIABLE.fullmatch(variable.name):
            raise JobError(f"environment: {variable.name!r} is not a variable's name: rename it, or leave it out.")
    of_job = {variable.name: variable.value for variable in spec.environment if variable.value is not None}
    return hvd_variables | {name: escaped(literal(value)) for name, value in of_job.items() if name not in SECRETS}


def escaped(text: str) -> str:
    """Escape a text for a stack file."""
    return text.replace("$", "$$")


def literal(text: str) -> str:
    """Escape a text for swarm's templates."""
    return text.replace("{{", '{{"{{"}}')


def _resources(required: Resources) -> dict[str, Any]:
    limits = _amounts(required, "limit")
    reserved: dict[str, Any] = _amounts(required, "request")
    if required.gpus is not None:
        reserved["generic_resources"] = [{"discrete_resource_spec": {"kind": GPU, "value": required.gpus}}]
    resources = {side: amounts for side, amounts in (("limits", limits), ("reservations", reserved)) if amounts}
    return {"resources": resources} if resources else {}


def _amounts(required: Resources, which: str) -> dict[str, str]:
    cpu, memory = _side(required.cpu, which), _side(required.memory_bytes, which)
    amounts = {} if cpu is None else {"cpus": f"{math.ceil(round(cpu * 1e9, 3)) / 1e9:.9f}".rstrip("0").rstrip(".")}
    return amounts | ({} if memory is None else {"memory": _memory(memory)})


def _memory(number: float) -> str:
    """Return bytes with a single letter, for powers of 1024: 4G."""
    return binary(math.ceil(number)).removesuffix("i")


def _side(bounds: Bounds, which: str) -> float | None:
    value: float | None = getattr(bounds, which)
    return value


def _moved(spec: JobSpec, name: str) -> list[str]:
    moved = spec.rendezvous is not None and spec.rendezvous.host != f"tasks.{name}"
    return ["the ranks meet at the service's first task"] if moved else []
