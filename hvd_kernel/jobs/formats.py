"""Job file formats: a table of readers. The first reader that matches a text is used.

This module imports all readers; to read a single format, import its reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hvd_kernel.jobs.documents import MAX_BYTES
from hvd_kernel.jobs.readers import (
    gradient,
    hostfile,
    kubernetes,
    mpirun,
    pbs_scripts,
    polyaxon,
    riseml,
    scripts,
    stack,
)
from hvd_kernel.jobs.spec import JobError, JobSpec

File = Callable[[str], str | None]


class FormatReader(NamedTuple):
    """A format: its name, functions that match and read a text, and a noun for such a text.

    If a text may name other files, ``read`` has a third argument ``file``, see ``formats.read``.
    """

    kind: str
    matches: Callable[[str, str], bool]
    read: Callable[..., JobSpec]
    text: str
    names_files: bool = False
    is_yaml: bool = False  # its keys identify the format reliably
    is_common: bool = False  # most files of the format have nothing to do with ranks


READERS = (
    FormatReader("slurm", scripts.matches_sbatch, scripts.read_sbatch, "script"),
    FormatReader("lsf", scripts.matches_bsub, scripts.read_bsub, "script"),
    FormatReader("pbs", pbs_scripts.matches_pbs, pbs_scripts.read_pbs, "script"),
    FormatReader("cobalt", pbs_scripts.matches_cobalt, pbs_scripts.read_cobalt, "script"),
    FormatReader("gradient", gradient.matches, gradient.read, "line", names_files=True),
    FormatReader("mpirun", mpirun.matches, mpirun.read, "line", names_files=True),
    FormatReader("horovodrun", mpirun.matches_horovod, mpirun.read, "line", names_files=True),
    FormatReader(
        "job", kubernetes.matches_indexed_job, kubernetes.read_indexed_job, "manifest", is_yaml=True, is_common=True
    ),
    FormatReader("mpijob", kubernetes.matches_mpijob, kubernetes.read_mpijob, "manifest", is_yaml=True),
    FormatReader(
        "trainjob", kubernetes.matches_trainjob, kubernetes.read_trainjob, "manifest", is_yaml=True, is_common=True
    ),
    FormatReader("swarm", stack.matches, stack.read, "stack file", is_yaml=True, is_common=True),
    FormatReader("riseml", riseml.matches, riseml.read, "riseml.yml", is_yaml=True),
    FormatReader("polyaxonfile", polyaxon.matches, polyaxon.read, "polyaxonfile", is_yaml=True),
    FormatReader("sge", hostfile.matches_sge, hostfile.read_sge_text, "hostfile"),
    FormatReader("hostfile", hostfile.matches, hostfile.read, "hostfile"),
)
"""Batch scripts and command lines come first, as their first words identify them; other files are identified by any of
their content. A hostfile comes last, as any word may be a line of it."""
SCRIPTS = "*.sbatch *.slurm *.lsf *.pbs *.sge"
"""File name patterns of batch scripts."""


def read(text: str, name: str, kind: str = "", file: File | None = None) -> JobSpec:
    """Return the job that a text describes.

    Parameters
    ----------
    text
        Content of a file, or a command line.
    name
        Name for error messages: the path of the file, or "the command line".
    kind
        Kind of one of ``READERS``; empty: detected from the text.
    file
        Function that returns the text of a file named in the text, such as mpirun's hostfile, or None.

    Raises
    ------
    JobError
        No reader matches, or the text is invalid; the message has the line and column.
    """
    _check(text, name)
    text = text.removeprefix(hostfile.BYTE_ORDER_MARK)
    kinds = [reader.kind for reader in READERS]
    if kind and kind not in kinds:
        raise JobError(f"{kind!r} is not a kind of job file: there are {', '.join(kinds)}.")
    for reader in READERS:
        if reader.kind == kind or (not kind and reader.matches(text, name)):
            return reader.read(text, name, file) if reader.names_files else reader.read(text, name)
    if not kind and hostfile.resembles(text, name):
        return hostfile.read(text, name)
    raise JobError(f"{name}: the format is not known (known: {', '.join(kinds)}); set it with --from KIND.")


def _check(text: str, name: str) -> None:
    if len(text) > MAX_BYTES:
        raise JobError(f"{name}: there are {len(text)} characters; {MAX_BYTES} are allowed.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # undecodable bytes of the command line
        raise JobError(f"{name}: character {error.start + 1} is not Unicode: write it in UTF-8.") from None
