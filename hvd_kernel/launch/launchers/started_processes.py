"""Processes below one on this host: name, state and what each waits in, for who has to say why ranks do not come.

Not their command lines: to read those asks for a lock of the process's memory, for which its reader may have to wait.
Source: https://docs.kernel.org/filesystems/proc.html (``stat``, ``wchan``).
"""

from __future__ import annotations

from pathlib import Path

from hvd_kernel.processes.lifetime import children, stat_of
from hvd_kernel.processes.resources.memory import descendants

_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel", "T": "stopped", "t": "stopped", "Z": "ended"}


def below(pid: int) -> str:
    """Return the descendants of a process as a list of words: ``mpiexec (71), sleeping in do_poll; ssh (72), ...``."""
    return "; ".join(said for each in descendants(pid, children) if each != pid and (said := _said(each)))


def _said(pid: int) -> str:
    fields = stat_of(pid)
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
    if not fields:
        return ""
    place = _place(pid)
    return f"{name} ({pid}), {_STATES.get(fields[0], fields[0])}{f' in {place}' if place else ''}"


def _place(pid: int) -> str:
    try:
        found = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:  # another user's, or a kernel that does not tell
        return ""
    return "" if found == "0" else found
