"""Job file formats: the table of readers, of which the first that knows a text takes it.

It imports all of them: whoever wants one format alone imports that reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hvd_kernel.jobs.documents import MAX_BYTES
from hvd_kernel.jobs.readers import gradient, hostfile, mpirun, polyaxon, riseml, sge, stack
from hvd_kernel.jobs.readers.kubernetes import indexed_job, mpijob, trainjob
from hvd_kernel.jobs.readers.scripts import bsub, sbatch
from hvd_kernel.jobs.spec import JobError, JobSpec

File = Callable[[str], str | None]


class FormatReader(NamedTuple):
    """A format: its name, whether a text looks like it, the function that reads it, and what such a text is called.

    That function has a third argument where a text may name other files: ``file``, see ``read``.
    """

    kind: str
    matches: Callable[[str, str], bool]
    read: Callable[..., JobSpec]
    text: str
    names_files: bool = False
    is_yaml: bool = False  # its keys tell it for certain; else any word may look like it


READERS = (
    FormatReader("slurm", sbatch.matches, sbatch.read, "script"),
    FormatReader("lsf", bsub.matches, bsub.read, "script"),
    FormatReader("gradient", gradient.matches, gradient.read, "line", names_files=True),
    FormatReader("mpirun", mpirun.matches, mpirun.read, "line", names_files=True),
    FormatReader("horovodrun", mpirun.matches_horovod, mpirun.read, "line", names_files=True),
    FormatReader("job", indexed_job.matches, indexed_job.read, "manifest", is_yaml=True),
    FormatReader("mpijob", mpijob.matches, mpijob.read, "manifest", is_yaml=True),
    FormatReader("trainjob", trainjob.matches, trainjob.read, "manifest", is_yaml=True),
    FormatReader("swarm", stack.matches, stack.read, "stack file", is_yaml=True),
    FormatReader("riseml", riseml.matches, riseml.read, "riseml.yml", is_yaml=True),
    FormatReader("polyaxonfile", polyaxon.matches, polyaxon.read, "polyaxonfile", is_yaml=True),
    FormatReader("sge", sge.matches, sge.read_text, "hostfile"),
    FormatReader("hostfile", hostfile.matches, hostfile.read, "hostfile"),
)
"""Batch scripts, then command lines: their first words tell them, while a file is told by what stands somewhere in it.
A hostfile, of which each line may be a single word, is the last."""
SCRIPTS = "*.sbatch *.slurm *.lsf *.pbs *.sge"
"""Names that batch scripts have."""


def read(text: str, name: str, kind: str = "", file: File | None = None) -> JobSpec:
    """Return the job that a text describes.

    Parameters
    ----------
    text
        A file's content, or a command line.
    name
        What errors call it: the file's path, or "the command line".
    kind
        One of ``READERS``; empty: told from the text.
    file
        Returns the text of a file that this one names, such as mpirun's hostfile; None: there is none.

    Raises
    ------
    JobError
        No reader knows it, or the one that does finds something wrong, which is named with line and column.
    """
    _check(text, name)
    kinds = [reader.kind for reader in READERS]
    if kind and kind not in kinds:
        raise JobError(f"{kind!r} is not a kind of job file: there are {', '.join(kinds)}.")
    for reader in READERS:
        if reader.kind == kind or (not kind and reader.matches(text, name)):
            return reader.read(text, name, file) if reader.names_files else reader.read(text, name)
    raise JobError(f"{name}: this is none of the files known here ({', '.join(kinds)}); --from KIND says which it is.")


def _check(text: str, name: str) -> None:
    if len(text) > MAX_BYTES:
        raise JobError(f"{name}: there are {len(text)} characters; {MAX_BYTES} are allowed.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of the command line that are no text
        raise JobError(f"{name}: character {error.start + 1} is not Unicode: write it in UTF-8.") from None
