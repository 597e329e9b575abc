"""Job writers, from a JobSpec to the text of a platform's file. Reading a written file returns the same JobSpec.

Settings that a platform does not support become comments at the start of the file, and ``Written.losses``; missing
required settings raise a ``JobError`` with the field and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hvd_kernel.jobs.spec import JobError, JobSpec
from hvd_kernel.jobs.writers import batch, kubernetes, kustomize, swarm
from hvd_kernel.jobs.writers.common import OPTION_KINDS, WriterOptions, Written

Writer = Callable[[JobSpec, WriterOptions], Written]

WRITERS: Mapping[str, Writer] = MappingProxyType(
    {
        "job": kubernetes.write_indexed_job,
        "kustomize": kustomize.write,
        "mpijob": kubernetes.write_mpijob,
        "trainjob": kubernetes.write_trainjob,
        "swarm": swarm.write,
        "slurm": batch.write_slurm,
        "lsf": batch.write_lsf,
    }
)

__all__ = ["OPTION_KINDS", "WRITERS", "Writer", "WriterOptions", "Written", "convert", "write"]


def convert(spec: JobSpec, kind: str, options: WriterOptions = WriterOptions()) -> Written:  # noqa: B008 - WriterOptions is frozen
    """Return the file that starts a job on a platform, and what of the job it does not have.

    Raises
    ------
    JobError
        The kind is unknown, or it does not support the job.
    """
    if kind not in WRITERS:
        raise JobError(f"{kind!r} is not a kind of file that is written: there are {', '.join(WRITERS)}.")
    return WRITERS[kind](spec, options)


def write(spec: JobSpec, kind: str, options: WriterOptions = WriterOptions()) -> str:  # noqa: B008 - WriterOptions is frozen
    """Return the text of ``convert``.

    Raises
    ------
    JobError
        See ``convert``.
    """
    return convert(spec, kind, options).text
