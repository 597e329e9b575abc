"""RiseML's riseml.yml: ``train`` with Horovod workers with GPUs, and lines that all workers run.

The number of processes per worker is ``processes:``, or its number of GPUs, or one. Every process runs each line of
``run``, with a barrier after each line.
Source: RiseML's documentation of 2018, as kept in tests/platforms/data/riseml.yml.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from hvd_kernel.jobs.documents import Document, parse
from hvd_kernel.jobs.spec import Bounds, JobSpec, Replica, Resources, size

_LOOKS = re.compile(r"^train:\s*(#.*)?$", re.MULTILINE)
Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Amount = Annotated[float, msgspec.Meta(gt=0)]


class _Workers(msgspec.Struct, forbid_unknown_fields=True):
    count: Count
    processes: Count | None = None


class _Horovod(msgspec.Struct, forbid_unknown_fields=True):
    workers: Count | _Workers


class _Framework(msgspec.Struct, forbid_unknown_fields=True):
    version: str | float | None = None
    horovod: _Horovod | None = None
    tensorboard: bool = False


class _Resources(msgspec.Struct, forbid_unknown_fields=True):
    gpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    cpus: Amount | None = None
    mem: str | Amount | None = None  # MiB


class _Train(msgspec.Struct, forbid_unknown_fields=True):
    framework: str = "tensorflow"
    tensorflow: _Framework | None = None
    resources: _Resources = msgspec.field(default_factory=_Resources)
    run: str | list[str] = msgspec.field(default_factory=list)
    install: list[str] = msgspec.field(default_factory=list)
    parameters: Any = None
    image: Any = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    train: _Train
    project: str = ""
    deploy: Any = None


def matches(text: str, _name: str) -> bool:
    """Return whether a file has the section ``train``."""
    return _LOOKS.search(text) is not None


def read(text: str, name: str) -> JobSpec:
    """Return the job of a riseml.yml.

    Raises
    ------
    JobError
        The file is invalid; the message has the line, column and field.
    """
    document = parse(text, name)
    file = document.convert(_File)
    train = file.train
    workers_or_count = train.tensorflow.horovod.workers if train.tensorflow and train.tensorflow.horovod else 1
    workers = workers_or_count if isinstance(workers_or_count, _Workers) else _Workers(workers_or_count)
    slots = workers.processes or train.resources.gpus or 1
    resources = _resources(train.resources, document)
    steps = (train.run,) if isinstance(train.run, str) else tuple(train.run)
    return JobSpec(
        "riseml",
        tuple(Replica("worker", index, slots=slots, resources=resources) for index in range(workers.count)),
        steps=(*(f"pip install {package}" for package in train.install), *steps),
        name=file.project,
        requires=_requires(train),
        warnings=_warnings(file, slots),
    )


def _resources(requested: _Resources, document: Document) -> Resources:
    """Return the limits of a worker; a plain number of memory is in mebibytes."""
    try:
        memory = None if requested.mem is None else size(requested.mem)
    except ValueError as error:
        raise document.error(("train", "resources", "mem"), str(error)) from None
    return Resources(Bounds(limit=requested.cpus), Bounds(limit=memory), requested.gpus)


def _requires(train: _Train) -> tuple[str, ...]:
    version = train.tensorflow.version if train.tensorflow else None
    return () if version is None else (f"{train.framework}=={version}",)


def _warnings(file: _File, slots: int) -> tuple[str, ...]:
    gpus = file.train.resources.gpus
    uneven = gpus % slots != 0 and gpus > slots
    warnings = {
        f"{gpus} GPUs are not a multiple of {slots} processes per worker: some stay unused": uneven,
        "train.run is missing: `job run` needs a command": not file.train.run,
        "train.parameters is ignored: only the first experiment of several could be meant": file.train.parameters,
        "train.image is ignored: ranks run in this environment": file.train.image,
        "deploy is ignored: only train is a job of ranks": file.deploy,
        "tensorboard is not started: `%hvd track` and HVD_TRACK=tensorboard write its files": file.train.tensorflow
        and file.train.tensorflow.tensorboard,
    }
    return tuple(text for text, holds in warnings.items() if holds)
