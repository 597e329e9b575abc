"""What a notebook's cluster needs of an engine: processes for its ranks, each of which calls back with an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class RankSource(Protocol):
    """One use of an engine, for one cluster (launch/launchers/cluster_engine.py:NotebookEngine)."""

    name: str
    """What it is called in messages."""

    addresses: Sequence[str]
    """Of this host, where the engine's processes may reach it; none: all of them are on this host."""

    def begin(self, address: str, secret: str, on_end: Callable[[str], None]) -> None:
        """Have a process started for each rank, which calls there; ``on_end`` is told why no more will come."""

    def shortage(self) -> str:
        """Say what the engine has for the ranks at this moment, as a sentence; empty: it does not tell."""

    def end(self, *, at_once: bool) -> None:
        """Leave nothing of it; ``at_once``: ranks that were asked for and have not come are not waited for."""
