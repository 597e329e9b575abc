"""Bandwidth of allreduce on this machine: measured in fresh processes, stored by machine, version and number of ranks.

Measured are ours, Gloo, MPI, and a copy in memory. ``%hvd bench`` and ``hvd.bench()`` write the private file; the panel
compares a run with it.

Terms.
  algorithm bandwidth  bytes reduced per second
  bus bandwidth        2 (n - 1) / n times as much: the least traffic of each rank's link, comparable for any n
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.private_dir import is_own, write_private
from hvd_kernel.settings.lookup import without_launchers
from hvd_kernel.version import __version__

OURS = "hvd_kernel"
_CPU = re.compile(r"^(?:model name|cpu model|CPU implementer|CPU part|Hardware)\s*:.*$", re.MULTILINE)


@dataclass(frozen=True)
class Bandwidth:
    """The results of one measurement."""

    ranks: int
    time: float  # seconds since 1970
    seconds: Mapping[str, Mapping[int, float]]  # by contender and by bytes: the time of one allreduce

    def possible(self, nbytes: float) -> float:
        """Return our algorithm bandwidth in bytes per second at the measured size nearest to ``nbytes``.

        Example: ``kept(4).possible(1 << 20)`` is ``1.4e9``.
        """
        ours = self.seconds[OURS]
        nearest = min(ours, key=lambda size: max(size / max(nbytes, 1), max(nbytes, 1) / size))
        return nearest / ours[nearest]

    @property
    def best(self) -> float:
        """Our largest algorithm bandwidth at any size, in bytes per second."""
        return max(nbytes / seconds for nbytes, seconds in self.seconds[OURS].items())

    def bus(self, algorithm: float) -> float:
        """Return the bus bandwidth of an algorithm bandwidth."""
        return bus_factor(self.ranks) * algorithm


def bus_factor(ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth of an allreduce, as nccl-tests defines it."""
    return 2 * (ranks - 1) / ranks


def machine(cpu: str | None = None, cores: int | None = None) -> str:
    """Return a digest of twelve digits of the machine's CPU model and number of usable cores."""
    with suppress(OSError):
        cpu = Path("/proc/cpuinfo").read_text() if cpu is None else cpu
    models = sorted(set(_CPU.findall(cpu or "")))
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    return hashlib.sha256(repr((models, cores)).encode()).hexdigest()[:12]


def folder() -> Path:
    """Return the folder of the files: below XDG_CACHE_HOME, or the home folder's ``.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    place = Path(cache) if cache.startswith("/") else Path(os.path.expanduser("~")) / ".cache"  # noqa: PTH111 - Path.home() raises without a home
    return place / "hvd_kernel"


def file(ranks: int) -> Path:
    """Return the file for this number of ranks, this machine and this version."""
    return folder() / f"bandwidth-{machine()}-{__version__}-{ranks}.json"


def keep(ranks: int, results: Sequence[Mapping[str, Any]]) -> str:
    """Store the results of ``python -m hvd_kernel.bench --json``; return why that fails, "" if it succeeds."""
    seconds: dict[str, dict[int, float]] = {}
    for result in results:
        seconds.setdefault(result["contender"], {})[result["nbytes"]] = result["seconds"]
    try:
        place = folder()
        if not place.is_absolute():
            return "there is no home folder"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own(place):
            return f"{place} is not a folder of yours"
        place.chmod(0o700)
        content = {"ranks": ranks, "time": time.time(), "seconds": seconds}
        write_private(file(ranks), json.dumps(content).encode())
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    return ""


def kept(ranks: int) -> Bandwidth | None:
    """Return the stored results for this number of ranks; None if there are no valid ones.

    Example: ``(kept(4) or unknown).best`` in bytes per second.
    """
    if not is_own(folder()):
        return None
    try:
        content = json.loads(file(ranks).read_text())
        seconds = {
            name: {int(nbytes): float(duration) for nbytes, duration in by_size.items()}
            for name, by_size in content["seconds"].items()
        }
        is_valid = content["ranks"] == ranks and seconds[OURS] and min(seconds[OURS].values()) > 0
        return Bandwidth(ranks, float(content["time"]), seconds) if is_valid else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


SIZES = ("4K", "64K", "1M", "16M", "64M")
ROUNDS = 3
PATIENCE_S = 170.0
"""Timeout of a measurement, which takes half a minute on an idle machine."""

_TAIL = 2000


@dataclass(frozen=True)
class Measured:
    """The results of a measurement, shown as a table, and in a notebook as a picture."""

    ranks: int
    results: tuple[Mapping[str, Any], ...]  # of each contender and size: contender, nbytes, seconds, busbw, ratio, ...
    text: str
    svg: str
    problem: str = ""  # why the results are not stored

    def __str__(self) -> str:
        return self.text + (f"not kept: {self.problem}\n" if self.problem else "")

    def __repr__(self) -> str:
        return str(self).rstrip()

    def _repr_svg_(self) -> str:
        return self.svg


def measure(ranks: int, sizes: Sequence[str] = SIZES, rounds: int = ROUNDS) -> Measured:
    """Measure with this number of ranks on this host, and store the results.

    Raises
    ------
    ClusterError
        If a rank failed, or our values were wrong; the message contains the output.
    """
    arguments = ["-np", str(ranks), "--sizes", ",".join(sizes), "--rounds", str(rounds), "--timeout", str(PATIENCE_S)]
    command = [sys.executable, "-P", "-m", "hvd_kernel.bench", *arguments, "--limit", "--json", "--tied"]
    with subprocess.Popen(  # noqa: S603 - our own module
        command,
        env=without_launchers(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the interrupt key must reach only this process
    ) as run:
        try:
            output, errors = run.communicate()
        except BaseException:
            run.kill()  # its ranks exit with it
            raise
    if run.returncode:
        raise ClusterError(f"the measurement failed with status {run.returncode}: {errors.strip()[-_TAIL:]}")
    report = json.loads(output)
    problem = keep(ranks, report["results"])
    return Measured(ranks, tuple(report["results"]), report["text"], report["svg"], problem)
