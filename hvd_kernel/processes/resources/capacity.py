"""Ranks that this machine has memory for: one rule for ``%hvd doctor``, the magics and ``hvdrun``."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_kernel.formatting.plural import plural
from hvd_kernel.processes.spares.spare import free_memory

RANK_BYTES = 500_000_000
"""Memory of one rank with torch imported, generously."""

ALWAYS = 8
"""Ranks that start whatever is free: no typing error, and ranks without a framework need a tenth of the memory."""


@dataclass(frozen=True)
class Capacity:
    """Free memory of this machine, or of this container, and the ranks that it holds."""

    free: int  # bytes

    @classmethod
    def now(cls) -> Capacity:
        """Return what is free at this moment."""
        return cls(free_memory())

    @property
    def ranks(self) -> int:
        """The number of ranks that still fit."""
        return max(0, self.free) // RANK_BYTES

    @property
    def sentence(self) -> str:
        """Return what is free, in words."""
        return f"{self.free / 1e9:.1f} GB free, room for about {plural(self.ranks, 'rank')}"

    def shortage(self, n: int, running: int = 0) -> str:
        """Return why this machine cannot hold ``n`` ranks, of which some run already; "" if it can."""
        if n - running <= self.ranks or n <= ALWAYS:
            return ""
        beside = f" beside the {running} that run" if running else ""
        return f"this machine cannot hold {n} ranks: {self.sentence}{beside}"

    def largest(self, running: int = 0) -> int:
        """Return the largest number of ranks that ``shortage`` accepts."""
        return max(ALWAYS, running + self.ranks)
