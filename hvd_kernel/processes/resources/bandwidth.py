"""Bandwidth that this machine has given, kept in a private file for each machine, version and number of ranks.

``%hvd bench`` and ``hvd.bench()`` write it; whoever shows what a run has achieved reads it.

Terms.
  algorithm bandwidth  bytes that are reduced in a second
  bus bandwidth        2 (n - 1) / n times as much: what each rank's link carries at least, for any number of ranks
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_kernel.processes.private_dir import is_own, write_private
from hvd_kernel.version import __version__

OURS = "hvd_kernel"
_CPU = re.compile(r"^(?:model name|cpu model|CPU implementer|CPU part|Hardware)\s*:.*$", re.MULTILINE)


@dataclass(frozen=True)
class Bandwidth:
    """What one measurement gave."""

    ranks: int
    time: float  # when, seconds since 1970
    seconds: Mapping[str, Mapping[int, float]]  # by contender and by bytes: the time of one allreduce

    def possible(self, nbytes: float) -> float:
        """Return what ours gave in bytes reduced per second, for tensors of about so many bytes: the nearest size's.

        Example: ``kept(4).possible(1 << 20)`` is ``1.4e9``.
        """
        ours = self.seconds[OURS]
        nearest = min(ours, key=lambda size: max(size / max(nbytes, 1), max(nbytes, 1) / size))
        return nearest / ours[nearest]

    @property
    def best(self) -> float:
        """The most that ours gave at any size, in bytes reduced per second."""
        return max(nbytes / seconds for nbytes, seconds in self.seconds[OURS].items())

    def bus(self, algorithm: float) -> float:
        """Return the bus bandwidth of an algorithm bandwidth."""
        return 2 * (self.ranks - 1) / self.ranks * algorithm


def machine(cpu: str | None = None, cores: int | None = None) -> str:
    """Return twelve digits that tell one machine from another: of its CPU's model and of how many cores may be used."""
    with suppress(OSError):
        cpu = Path("/proc/cpuinfo").read_text() if cpu is None else cpu
    models = sorted(set(_CPU.findall(cpu or "")))
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    return hashlib.sha256(repr((models, cores)).encode()).hexdigest()[:12]


def folder() -> Path:
    """Return where it is kept: below XDG_CACHE_HOME, or the home folder's ``.cache``."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    place = Path(named) if named.startswith("/") else Path(os.path.expanduser("~")) / ".cache"  # noqa: PTH111 - Path.home() raises where there is none
    return place / "hvd_kernel"


def file(ranks: int) -> Path:
    """Return the file of so many ranks on this machine, of this version."""
    return folder() / f"bandwidth-{machine()}-{__version__}-{ranks}.json"


def keep(ranks: int, results: Sequence[Mapping[str, Any]]) -> str:
    """Keep what ``python -m hvd_kernel.bench --json`` has found; return why it cannot be kept, "" if it is."""
    found: dict[str, dict[int, float]] = {}
    for each in results:
        found.setdefault(each["contender"], {})[each["nbytes"]] = each["seconds"]
    try:
        place = folder()
        if not place.is_absolute():
            return "there is no home folder"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own(place):
            return f"{place} is not a folder of yours"
        place.chmod(0o700)
        content = {"ranks": ranks, "time": time.time(), "seconds": found}
        write_private(file(ranks), json.dumps(content).encode())
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    return ""


def kept(ranks: int) -> Bandwidth | None:
    """Return what so many ranks of this version gave on this machine; None: nothing is kept, or it is not whole.

    Example: ``(kept(4) or unknown).best`` in bytes per second.
    """
    if not is_own(folder()):
        return None
    try:
        found = json.loads(file(ranks).read_text())
        seconds = {
            name: {int(nbytes): float(each) for nbytes, each in by_size.items()}
            for name, by_size in found["seconds"].items()
        }
        right = found["ranks"] == ranks and all(each > 0 for each in seconds[OURS].values()) and seconds[OURS]
        return Bandwidth(ranks, float(found["time"]), seconds) if right else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
