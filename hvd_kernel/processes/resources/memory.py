"""Memory of a process and its descendants, as a cgroup would count it: what it has written, not what it has mapped.

Source: https://docs.kernel.org/filesystems/proc.html (``RssAnon``, ``RssShmem``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

_PROC = Path("/proc")
_FIELD = re.compile(r"^(RssAnon|RssShmem):\s+(\d+) kB$", re.MULTILINE)

Children = Callable[[int], list[int]]


def used(pid: int, children: Children, proc: Path = _PROC) -> int:
    """Return bytes that a process and its descendants hold: private pages of all, shared ones of whoever has most.

    Ranks share memory with each other and with their own workers: a sum would count the same pages many times.
    """
    held = [_held(each, proc) for each in descendants(pid, children)]
    return sum(private for private, _ in held) + max((shared for _, shared in held), default=0)


def descendants(pid: int, children: Children) -> Iterator[int]:
    """Yield a process and everything below it."""
    yield pid
    for child in children(pid):
        yield from descendants(child, children)


def _held(pid: int, proc: Path) -> tuple[int, int]:
    try:
        found = dict(_FIELD.findall((proc / str(pid) / "status").read_text()))
    except OSError:  # it has ended
        return 0, 0
    return int(found.get("RssAnon", 0)) * 1024, int(found.get("RssShmem", 0)) * 1024
