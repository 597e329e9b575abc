"""TrainJob of Kubeflow Trainer v2, trainer.kubeflow.org/v1alpha1, with an mpi runtime.

Fields that the TrainJob does not set are defined by its runtime, which exists only in the cluster.
Source: https://github.com/kubeflow/trainer, pkg/apis/trainer/v1alpha1/trainjob_types.go.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from hvd_kernel.jobs.documents import ignored_fields
from hvd_kernel.jobs.readers.kubernetes import objects, pod
from hvd_kernel.jobs.readers.scripts import commands
from hvd_kernel.jobs.spec import JobSpec, Replica

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
_LAUNCHER = "-launcher-0-0"
_AT = ("spec", "trainer")
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
    env: list[pod.EnvVar] | None = None
    numNodes: Count | None = None  # noqa: N815
    numProcPerNode: Count | None = None  # noqa: N815
    resourcesPerNode: pod.Requirements | None = None  # noqa: N815


class _Spec(msgspec.Struct, forbid_unknown_fields=True):
    runtimeRef: _Runtime  # noqa: N815
    trainer: _Trainer = msgspec.field(default_factory=_Trainer)
    suspend: bool | None = None
    activeDeadlineSeconds: Count | None = None  # noqa: N815
    managedBy: str | None = None  # noqa: N815
    labels: Any = None
    annotations: Any = None
    initializer: Annotated[Any, msgspec.Meta(description="what it downloads must already exist")] = None
    runtimePatches: Annotated[Any, msgspec.Meta(description=_IN_RUNTIME)] = None  # noqa: N815
    podTemplateOverrides: Annotated[Any, msgspec.Meta(description=_IN_RUNTIME)] = None  # noqa: N815
    podSpecOverrides: Annotated[Any, msgspec.Meta(description=_IN_RUNTIME)] = None  # noqa: N815


class _File(objects.Manifest, kw_only=True, forbid_unknown_fields=True):
    spec: _Spec


matches = objects.matcher("TrainJob")


def read(text: str, name: str) -> JobSpec:
    """Return the job of a TrainJob's manifest.

    Raises
    ------
    JobError
        The manifest is invalid; the message has the line, column and field.
    """
    document = objects.only(text, name, "TrainJob", "trainer.kubeflow.org/v1alpha1")
    file = document.convert(_File)
    trainer = file.spec.trainer
    objects.one_of(document, ("spec", "managedBy"), file.spec.managedBy, _MANAGERS)
    objects.one_of(document, ("spec", "runtimeRef", "kind"), file.spec.runtimeRef.kind, _RUNTIMES)
    nodes = trainer.numNodes or 1
    job_name = objects.called(document, file.metadata, max(_LAUNCHER, f"-node-0-{nodes - 1}", key=len), "TrainJob")
    container = pod.Container(trainer.image or "", trainer.command, trainer.args, trainer.env)
    line, variables, ignored = pod.run(document, _AT, container)
    resources = pod.resources(document, (*_AT, "resourcesPerNode"), trainer.resourcesPerNode)
    slots = trainer.numProcPerNode or resources.gpus or 1
    replicas = tuple(Replica("worker", index, slots=slots, resources=resources) for index in range(nodes))
    return JobSpec(
        "trainjob",
        replicas,
        steps=line.steps,
        np=commands.fit(line, replicas, document, (*_AT, "command")),
        environment=pod.merged(variables, line.environment),
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
