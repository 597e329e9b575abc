"""Control groups, version 2: a rank's cores and memory, kept by the kernel where this user may make groups.

Source: https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
_NEEDED = {"cpu", "memory"}
_PERIOD_US = 100_000


def writable(mount: Path = MOUNT, own: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the group below which groups with limits can be made; None: the kernel or the rights are not there.

    A group that holds processes cannot hand its controllers down, so theirs must be handed down already.
    """
    try:
        line = next(line for line in own.read_text().splitlines() if line.startswith("0::"))
        group = mount / line.removeprefix("0::").lstrip("/")
        handed = set((group / "cgroup.subtree_control").read_text().split())
    except (OSError, StopIteration):
        return None
    return group if handed >= _NEEDED and os.access(group, os.W_OK) else None


def make(parent: Path, name: str, cores: float | None, memory: int | None) -> Path:
    """Return a new group with these limits.

    Raises
    ------
    OSError
        The kernel does not allow it.
    """
    group = parent / name
    group.mkdir()
    try:
        if cores is not None:
            (group / "cpu.max").write_text(f"{max(1000, round(cores * _PERIOD_US))} {_PERIOD_US}")
        if memory is not None:
            (group / "memory.max").write_text(str(memory))
            for name_of, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with suppress(OSError):  # no swap, or an older kernel
                    (group / name_of).write_text(value)
    except OSError:
        remove(group)
        raise
    return group


def peak_if_killed(group: Path) -> int | None:
    """Return the bytes at which the kernel killed a process of the group for memory; None: it has not."""
    events = dict(line.split() for line in _text(group / "memory.events").splitlines())
    if not int(events.get("oom_kill", 0)):
        return None
    return int(_text(group / "memory.peak") or _text(group / "memory.max") or 0)


def remove(group: Path) -> None:
    """Remove a group whose processes have ended."""
    with suppress(OSError):
        group.rmdir()


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
