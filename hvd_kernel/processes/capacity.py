"""Free memory of this machine and the number of ranks that fit: one rule for ``%hvd doctor``, magics, ``hvdrun``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.formatting.units import plural

RANK_BYTES = 500_000_000
"""Memory of one rank with torch imported, rounded up."""

ALWAYS = 8
"""Number of ranks that may start in any case: it is no typing error, and without a framework they need a tenth."""


@dataclass(frozen=True)
class Capacity:
    """Free memory of this machine, or of this container, and the ranks that it holds."""

    free: int  # bytes

    @classmethod
    def now(cls) -> Capacity:
        """Return the current capacity."""
        return cls(free_memory())

    @property
    def ranks(self) -> int:
        """The number of ranks that fit."""
        return max(0, self.free) // RANK_BYTES

    @property
    def sentence(self) -> str:
        """The free memory and the number of ranks for users."""
        return f"{self.free / 1e9:.1f} GB free, room for about {plural(self.ranks, 'rank')}"

    def shortage(self, n: int, running: int = 0) -> str:
        """Return why this machine cannot hold ``n`` ranks, of which ``running`` run already; "" if it can."""
        if n - running <= self.ranks or n <= ALWAYS:
            return ""
        beside = f" beside the {running} that run" if running else ""
        return f"this machine cannot hold {n} ranks: {self.sentence}{beside}"

    def largest(self, running: int = 0) -> int:
        """Return the largest number of ranks that ``shortage`` accepts."""
        return max(ALWAYS, running + self.ranks)


def free_memory() -> int:
    """Return the bytes available without swapping, on the machine or in this container, whichever is less."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    machine = int(lines["MemAvailable"].split()[0]) << 10
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, int(limit) - int(used))
