"""TrainJob of Kubeflow Trainer v2, trainer.kubeflow.org/v1alpha1: hvdrun in the launcher of an mpi runtime.

Source: https://github.com/kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go; JobSet's names of pods.
"""

from __future__ import annotations

from typing import Any

from hvd_kernel.jobs import lines
from hvd_kernel.jobs.spec import JobError, JobSpec
from hvd_kernel.jobs.writers import common, kubernetes, mpijob
from hvd_kernel.jobs.writers.options import WriterOptions

_LAUNCHER = "-launcher-0-0"
MOST_IMAGE, MOST_TEXT, MOST_VARIABLES = 500, 65_536, 128


def write(spec: JobSpec, options: WriterOptions) -> str:
    """Return the object.

    Raises
    ------
    JobError
        The job has no steps, its replicas differ, or a value is invalid for the Trainer.
    """
    shape = common.Shape(spec)
    nodes = len(shape.replicas)
    name = kubernetes.checked_name(spec, max(_LAUNCHER, f"-node-0-{nodes - 1}", key=len), "TrainJob")
    trainer: dict[str, Any] = {"image": common.whole(spec.image, "image")} if spec.image else {}
    trainer |= kubernetes.shell(lines.script(common.steps(spec), shape.np, spec.interfaces, workdir=spec.workdir))
    trainer |= _filled("env", kubernetes.environment(spec, {}))
    first = shape.alike("TrainJob")
    trainer |= {"numNodes": nodes, "numProcPerNode": first.slots}
    trainer |= _filled("resourcesPerNode", kubernetes.resources(first.resources))
    _check(trainer)
    body = {"runtimeRef": {"name": options.runtime}, "trainer": trainer}
    manifest = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": body,
    }
    notes = [*shape.notes, *common.lost(spec, "Kubernetes"), *common.taken_over(spec), *mpijob.rendezvous_notes(spec)]
    notes += common.kept_secret(spec, "hvdrun makes one for each run")
    notes.append(f"the runtime {options.runtime} must have an mpi policy, its nodes hvd_kernel and memory for /dev/shm")
    how = [f"  kubectl apply -f FILE && kubectl logs -f -l jobset.sigs.k8s.io/jobset-name={name}"]
    return common.head(f"{shape.counted('node')}, by Kubeflow's Trainer", how, notes) + kubernetes.dumped([manifest])


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
