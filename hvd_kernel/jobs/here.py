"""Job sources on this host: files, command lines, the allocation of this process, the machine.

The part of jobs that is not pure: it reads files, the environment and host names, and starts no ranks.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from hvd_kernel.errors import UsageError
from hvd_kernel.jobs.grace import GracePeriod, grace_period
from hvd_kernel.jobs.place import Machine
from hvd_kernel.jobs.readers import slurm
from hvd_kernel.jobs.readers.allocation import Allocation, detect
from hvd_kernel.jobs.shell_lines import join
from hvd_kernel.jobs.spec import JobError, JobSpec
from hvd_kernel.settings import gpus

_ANSWER_S = 10.0
_GRACE_ANSWER_S = 5.0  # the job starts after it
_MOST = 1 << 20  # characters of a job file


def step_options(via: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the option by which the program ``via`` starts a step on a host, for each host that needs one."""
    return slurm.step_options(env) if via == "srun" else {}


def of_words(files: Sequence[str], line: Sequence[str], kind: str) -> JobSpec:
    """Return the job of a file, or of a command line after ``--``.

    Raises
    ------
    UsageError
        There is neither, or more than one file.
    JobError
        The file or line is invalid.
    """
    if len(files) > 1:
        raise UsageError(f"hvdrun job: one file at a time, but there are {', '.join(files)}")
    if files:
        return of_file(Path(files[0]), kind)
    if line:
        from hvd_kernel.jobs import formats  # noqa: PLC0415 - imports all readers, not needed without a file

        return formats.read(join([Path(line[0]).name, *line[1:]]), "the command line", kind, text_of)
    raise UsageError("hvdrun job: which job? Name its file, or a line behind --: hvdrun job plan -- mpirun -np 4 ...")


def of_file(path: Path, kind: str = "") -> JobSpec:
    """Return the job of a file.

    Raises
    ------
    JobError
        The file cannot be read, or is invalid.
    """
    text = text_of(str(path))
    if text is None:
        raise JobError(f"{path}: there is no such file, or it is not text: check the path.")
    from hvd_kernel.jobs import formats  # noqa: PLC0415 - as above

    return formats.read(text, str(path), kind, text_of)


def text_of(path: str) -> str | None:
    """Return the text of a file, or None if it cannot be read."""
    try:
        with Path(path).open() as file:
            return file.read(_MOST + 1)
    except (OSError, UnicodeDecodeError):
        return None


def allocation(env: Mapping[str, str]) -> Allocation | None:
    """Return the allocation of this process.

    Raises
    ------
    JobError
        The environment is contradictory.
    """
    return detect(env, text_of, _addresses, _answer)


def grace(env: Mapping[str, str]) -> GracePeriod:
    """Return the grace period of a job without one of its own: that of the environment."""
    return grace_period(None, env, partial(_answer, timeout_s=_GRACE_ANSWER_S))


def _answer(words: list[str], timeout_s: float = _ANSWER_S) -> str | None:
    """Return the output of a scheduler's command, or None if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)  # noqa: S603 - fixed words
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _addresses(name: str) -> list[str]:
    """Return the sorted addresses of a host name, without duplicates."""
    try:
        infos = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(address[0]) for _, _, _, _, address in infos})


def machine() -> Machine:
    """Return the resources of this machine."""
    return Machine(len(os.sched_getaffinity(0)), psutil.virtual_memory().total, gpus.count())
