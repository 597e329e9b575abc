"""Indexed Jobs of Kubernetes (batch/v1): a pod with one or more ranks per index.

Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from hvd_kernel.jobs.documents import Document
from hvd_kernel.jobs.readers.kubernetes import objects, pod
from hvd_kernel.jobs.readers.scripts import commands
from hvd_kernel.jobs.spec import JobSpec, RendezvousAddress, Replica

Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_OWN = ("HVD_JOB_NAME", "HVD_JOB_SERVICE", "HVD_JOB_SIZE", "HVD_JOB_SLOTS", "HVD_JOB_PORT")
_AT = ("spec", "template")


class _Spec(msgspec.Struct):
    template: pod.Template
    completions: Count | None = None
    parallelism: Count | None = None
    completionMode: str | None = None  # noqa: N815 - Kubernetes' name


class _File(msgspec.Struct):
    spec: _Spec
    metadata: objects.Meta = msgspec.field(default_factory=objects.Meta)


matches = objects.matcher("Job")


def read(text: str, name: str) -> JobSpec:
    """Return the job of an Indexed Job's manifest.

    Raises
    ------
    JobError
        The manifest is invalid; the message has the line, column and field.
    """
    document = objects.only(text, name, "Job", "batch/v1")
    file = document.convert(_File)
    pods = file.spec.completions or 1
    _check(document, file.spec, pods)
    job_name = objects.called(document, file.metadata, f"-{pods - 1}", "Job")
    ranks = pod.ranks(document, _AT, file.spec.template, _OWN)
    slots = _whole(document, ranks.writer_variables, "HVD_JOB_SLOTS", 1)
    port = _whole(document, ranks.writer_variables, "HVD_JOB_PORT", 0)
    service = ranks.writer_variables.get("HVD_JOB_SERVICE", "")
    replicas = tuple(Replica("worker", index, slots=slots, resources=ranks.resources) for index in range(pods))
    return JobSpec(
        "job",
        replicas,
        steps=ranks.line.steps,
        np=commands.fit(ranks.line, replicas, document, (*_AT, "spec", "containers", 0, "command")),
        environment=ranks.environment,
        name=job_name,
        image=ranks.image,
        workdir=ranks.line.workdir,
        rendezvous=RendezvousAddress(f"{job_name}-0.{service}", port) if service else None,
        interfaces=ranks.line.interfaces,
        warnings=ranks.warnings,
    )


def _check(document: Document, spec: _Spec, pods: int) -> None:
    objects.one_of(document, ("spec", "completionMode"), spec.completionMode, ("Indexed", "NonIndexed"))
    if pods > 1 and spec.completionMode != "Indexed":
        raise document.error(("spec", "completionMode"), f"must be Indexed: the {pods} pods take their ranks from it")
    if (spec.parallelism or 1) < pods:
        raise document.error(
            ("spec", "parallelism"), f"must be {pods}, as completions: ranks of pods that do not run are waited for"
        )


def _whole(document: Document, variables: Mapping[str, str], name: str, default: int) -> int:
    text = variables.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 7):  # noqa: PLR2004 - a million
        raise document.error(_AT, f"{name}={text!r} must be a whole number")
    return int(text)
