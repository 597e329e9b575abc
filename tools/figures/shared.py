"""Shared parts of the figures: a kernel with ranks, what its processes hold, how times are told."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from hvdtest.kernel import Kernel

RANKS = 4
STARTS = "%%hvdrun -np 4\nimport hashlib, os, torch"
ALLREDUCE = "%%hvdrun\nimport torch\nint(hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum, name='figures'))"


@contextmanager
def running() -> Iterator[Kernel]:
    """A kernel with four ranks."""
    with tempfile.TemporaryDirectory() as home, Kernel(Path(home)) as kernel:
        kernel.run(STARTS, timeout=120)
        yield kernel


def pids(kernel: Kernel) -> list[int]:
    """Process ids of the ranks, in rank order."""
    return [int(line.split()[2]) for line in kernel.run("%hvd status").text().splitlines()[1:]]


def wait_for_a_spare(kernel: Kernel) -> None:
    """Return when a spare is warm: it is started when the ranks have been idle a moment, and imports in idle time."""
    deadline = time.monotonic() + 60
    kernel.run("from hvd_kernel.magics import manager_of")
    while kernel.run("manager_of(get_ipython()).current().spares").shown == ["0"]:
        assert time.monotonic() < deadline, "no spare got warm"
        time.sleep(0.2)


def spread(seconds: list[float]) -> str:
    """Median, 99th percentile and worst."""
    ordered = sorted(seconds)
    high = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return f"p50 {statistics.median(ordered):.2f} s, p99 {high:.2f} s, worst {ordered[-1]:.2f} s, n = {len(ordered)}"


def resident(pid: int) -> int:
    """Resident bytes of a process, 0 for one that is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
