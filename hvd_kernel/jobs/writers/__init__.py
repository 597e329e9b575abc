"""Job writers: JobSpec -> a platform's file, as text. Reading what was written gives the same JobSpec.

What a platform cannot say stands as a comment at the file's head; what it cannot do without is a ``JobError`` that
names the field and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hvd_kernel.jobs.spec import JobError, JobSpec
from hvd_kernel.jobs.writers import indexed_job, lsf, mpijob, slurm, swarm, trainjob
from hvd_kernel.jobs.writers.options import OPTION_KINDS, WriterOptions

Writer = Callable[[JobSpec, WriterOptions], str]

WRITERS: Mapping[str, Writer] = MappingProxyType(
    {
        "job": indexed_job.write,
        "mpijob": mpijob.write,
        "trainjob": trainjob.write,
        "swarm": swarm.write,
        "slurm": slurm.write,
        "lsf": lsf.write,
    }
)

__all__ = ["OPTION_KINDS", "WRITERS", "Writer", "WriterOptions", "write"]


def write(spec: JobSpec, kind: str, options: WriterOptions = WriterOptions()) -> str:  # noqa: B008 - it is frozen
    """Return the file that starts a job on a platform.

    Raises
    ------
    JobError
        There is no such kind, or the job cannot be said in it.
    """
    if kind not in WRITERS:
        raise JobError(f"{kind!r} is not a kind of file that is written: there are {', '.join(WRITERS)}.")
    return WRITERS[kind](spec, options)
