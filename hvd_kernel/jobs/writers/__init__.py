"""Job writers, from a JobSpec to the text of a platform's file. Reading a written file returns the same JobSpec.

Settings that a platform does not support become comments at the start of the file; missing required settings raise a
``JobError`` with the field and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hvd_kernel.jobs.spec import JobError, JobSpec
from hvd_kernel.jobs.writers import batch, kubernetes, swarm
from hvd_kernel.jobs.writers.common import OPTION_KINDS, WriterOptions

Writer = Callable[[JobSpec, WriterOptions], str]

WRITERS: Mapping[str, Writer] = MappingProxyType(
    {
        "job": kubernetes.write_indexed_job,
        "mpijob": kubernetes.write_mpijob,
        "trainjob": kubernetes.write_trainjob,
        "swarm": swarm.write,
        "slurm": batch.write_slurm,
        "lsf": batch.write_lsf,
    }
)

__all__ = ["OPTION_KINDS", "WRITERS", "Writer", "WriterOptions", "write"]


def write(spec: JobSpec, kind: str, options: WriterOptions = WriterOptions()) -> str:  # noqa: B008 - WriterOptions is frozen
    """Return the file that starts a job on a platform.

    Raises
    ------
    JobError
        The kind is unknown, or it does not support the job.
    """
    if kind not in WRITERS:
        raise JobError(f"{kind!r} is not a kind of file that is written: there are {', '.join(WRITERS)}.")
    return WRITERS[kind](spec, options)
