"""Limits of a rank: cores and memory, by a cgroup where one can be made, else by affinity and a look at its memory.

The look comes every tenth of a second, so a rank may pass its limit by what it can touch in that time; then it is
killed, and the text says how much it had. rlimits are no use for this: they count addresses, and torch reserves many
times what it touches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.formatting.binary_size import binary_size
from hvd_kernel.processes.resources import cgroup
from hvd_kernel.processes.resources.memory import Children, used

LOOK_S = 0.1
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables that say with how many threads a process computes."""

LIMIT = "limit"
"""Begin of the name of the file that says why a rank was killed for a limit; its process id follows."""


@dataclass(frozen=True)
class Limits:
    """What one rank may use; None: anything."""

    cores: float | None = None
    memory: int | None = None  # bytes

    def __bool__(self) -> bool:
        return self.cores is not None or self.memory is not None


def means() -> str:
    """Return how limits are kept on this host, as a plan says it."""
    if cgroup.writable() is not None:
        return "by cgroup v2"
    return "by affinity (whole cores) and a look at memory every 0.1 s: no cgroup v2 can be made here"


def threads(limits: Limits) -> int | None:
    """Return how many threads a rank should compute with; None: not limited."""
    return None if limits.cores is None else max(1, math.floor(limits.cores))


def cores_of(number: int, limits: Limits, there: Sequence[int]) -> set[int] | None:
    """Return the cores of the rank with that number on its host; None: all of them.

    Ranks take their cores one after another and begin again where there are no more.
    """
    if limits.cores is None or limits.cores >= len(there):
        return None
    count = max(1, math.ceil(limits.cores))
    return {there[(number * count + i) % len(there)] for i in range(count)}


class Confinement:
    """One rank's limits while it runs. ``enter`` in the rank's process before its program, the rest in its parent's."""

    def __init__(self, number: int, limits: Limits, children: Children) -> None:
        self._limits, self._children, self._group = limits, children, _group(number, limits)
        self._cores = None if self._group else cores_of(number, limits, sorted(os.sched_getaffinity(0)))

    @property
    def looks(self) -> bool:
        """True: ``passed`` must be asked again and again."""
        return self._group is None and self._limits.memory is not None

    def enter(self) -> None:
        """Put this process under the limits."""
        if self._group is not None:
            (self._group / "cgroup.procs").write_text("0")
        elif self._cores is not None:
            os.sched_setaffinity(0, self._cores)

    def add(self, pid: int) -> None:
        """Put a process that runs already under the limits, with all its threads; it may be gone.

        A thread that is made meanwhile has its maker's cores, so a second look finds only those that were too early.
        """
        try:
            if self._group is not None:
                (self._group / "cgroup.procs").write_text(str(pid))
            elif self._cores is not None:
                done: set[str] = set()
                while new := {thread.name for thread in Path(f"/proc/{pid}/task").iterdir()} - done:
                    for thread in new:
                        os.sched_setaffinity(int(thread), self._cores)
                    done |= new
        except OSError:
            return

    def passed(self, pid: int) -> str:
        """Return why the rank has to be killed; empty: it does not."""
        if not self.looks or self._limits.memory is None:
            return ""
        now = used(pid, self._children)
        return killed_for(now, self._limits.memory) if now > self._limits.memory else ""

    def ended(self) -> str:
        """Let the cgroup go; return why the kernel has killed the rank, if it has."""
        if self._group is None:
            return ""
        peak = cgroup.peak_if_killed(self._group)
        cgroup.remove(self._group)
        return "" if peak is None else killed_for(peak, self._limits.memory or peak)


def killed_for(now: int, limit: int) -> str:
    """Return the sentence for a rank that has passed its memory limit."""
    return f"killed for memory: {binary_size(now)} of its limit of {binary_size(limit)}"


def _group(number: int, limits: Limits) -> Path | None:
    parent = cgroup.writable() if limits else None
    if parent is None:
        return None
    try:
        return cgroup.make(parent, f"hvd-{os.getpid()}-{number}", limits.cores, limits.memory)
    except OSError:
        return None
