"""Grid Engine allocation reader (SGE, UGE): PE_HOSTFILE, lines of ``host slots queue processors``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hvd_kernel.jobs.readers import hostfile
from hvd_kernel.jobs.spec import JobError, JobSpec

Env = Mapping[str, str]
File = Callable[[str], str | None]

_LINE = re.compile(r"\s*(?P<host>[\w.-]+)\s+(?P<slots>0*[1-9][0-9]{0,5})\s+(?P<queue>\S+)(?:\s+\S+)*\s*", re.ASCII)


def in_allocation(env: Env) -> bool:
    """Return whether this process is in a parallel environment of Grid Engine."""
    return bool(env.get("PE_HOSTFILE"))


def read(env: Env, file: File) -> JobSpec:
    """Return the job's hosts with their slots.

    Raises
    ------
    JobError
        The file cannot be read, or a line is invalid.
    """
    path = env["PE_HOSTFILE"]
    text = file(path)
    if text is None:
        raise JobError(f"PE_HOSTFILE={path!r} cannot be read: it is on the job's first host; run this there.")
    return read_text(text, path, env.get("JOB_NAME", ""))


def matches(text: str, _name: str) -> bool:
    """Return whether all lines have a host, a number and a queue."""
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and all(_LINE.fullmatch(line) for line in lines)


def read_text(text: str, name: str, job: str = "") -> JobSpec:
    """Return the hosts of a PE_HOSTFILE; the slots of a host in several queues are added.

    Raises
    ------
    JobError
        A line is invalid, or there is no host; the message has the line.
    """
    hosts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if not match:
            column = len(line) - len(line.lstrip()) + 1
            raise JobError(f"{name}:{number}:{column}: {line.strip()[:80]!r} is not `host slots queue processors`.")
        hosts[match["host"]] = hosts.get(match["host"], 0) + int(match["slots"])
    if not hosts:
        raise JobError(f"{name}:1:1: the file names no host: Grid Engine writes lines `host slots queue processors`.")
    return JobSpec("sge", hostfile.replicas(hosts), name=job)
