"""Inquiry into where a cluster's ranks are: they are asked; one that does not answer is looked at from outside.

Terms.
  inquiry   one question to some ranks, that never waits by itself
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hvd_kernel.diagnosis import stack_pipe
from hvd_kernel.diagnosis.written_stacks import c_functions, python_calls
from hvd_kernel.processes.lifetime import is_stopped
from hvd_kernel.protocol.messages import Whereabouts, from_wire

PATIENCE_S = 1.0
"""A rank that has not answered by then does not run Python."""


class Answers(Protocol):
    """What collects the ranks' answers to one question."""

    def settle(self, timeout: float) -> object:
        """Wait until all have come, or until the time is over."""

    def so_far(self) -> Mapping[int, Mapping[str, Any]]:
        """Return those that have come by now."""


class Cluster(Protocol):
    """Ranks that can be asked: what is needed of ``cluster.Session``."""

    @property
    def n(self) -> int:
        """The number of ranks."""

    @property
    def dead(self) -> Sequence[int]:
        """Ranks whose process is gone."""

    @property
    def folder(self) -> Path:
        """The private folder of the ranks on this host."""

    @property
    def latest(self) -> Any:
        """The cell that runs, or ran last: ``cell``, its number, and ``file``, by which its code goes; or None."""

    def status(self) -> Sequence[Any]:
        """Every rank's process: ``rank``, ``pid``, ``host``, ``alive``."""

    def post(self, handler: str, ranks: Sequence[int] | None, *, urgent: bool = False) -> Answers:
        """Ask without waiting."""


def look(cluster: Cluster, ranks: Collection[int], patience: float = PATIENCE_S) -> dict[int, Whereabouts]:
    """Return where ranks are. Waits for slow ones, then looks from outside."""
    inquiry = Inquiry(cluster, ranks)
    inquiry.settle(patience)
    return inquiry.answers() | inquiry.from_outside(inquiry.silent())


class Inquiry:
    """Asks ranks where they are."""

    def __init__(self, cluster: Cluster, ranks: Collection[int]) -> None:
        self._cluster = cluster
        self._ranks = set(ranks)
        self._answers = cluster.post("stacks", sorted(ranks), urgent=True)

    def settle(self, seconds: float) -> None:
        """Wait until all have answered, or until the time is over."""
        self._answers.settle(seconds)

    def answers(self) -> dict[int, Whereabouts]:
        """Return what ranks have answered by now."""
        said = self._answers.so_far()
        return {r: _whereabouts(r, content) for r, content in said.items() if r in self._ranks}

    def silent(self) -> set[int]:
        """Return the ranks that have not answered."""
        return self._ranks - set(self._answers.so_far())

    def from_outside(self, ranks: Collection[int]) -> dict[int, Whereabouts]:
        """Return what the machine says about ranks; waits for the signal handlers of those that run."""
        halted, pids, dead = stopped(self._cluster), local_pids(self._cluster), set(self._cluster.dead)
        found: dict[int, Whereabouts] = {}
        for rank in ranks:
            if rank in dead or rank in halted:
                found[rank] = Whereabouts(rank, "dead" if rank in dead else "stopped")
            else:
                found[rank] = self._written(rank, pids.get(rank))
        return found

    def _written(self, rank: int, pid: int | None) -> Whereabouts:
        lines = [] if pid is None else stack_pipe.read(self._cluster.folder, rank, pid)
        run = self._cluster.latest
        cells = {run.file: f"cell {run.cell}"} if run else {}
        return Whereabouts(rank, "silent", frames=python_calls(lines, cells), native=c_functions(lines))


def _whereabouts(rank: int, content: object) -> Whereabouts:
    """Read an answer; an error is the death of the rank, or a rank of another version, which cannot say more."""
    wire = dict(content) if isinstance(content, dict) else {}
    return Whereabouts(rank, "dead") if "error" in wire else from_wire(Whereabouts, wire)


def local_pids(cluster: Cluster) -> dict[int, int]:
    """Return the processes of the living ranks on this host."""
    here = socket.gethostname()
    return {each.rank: each.pid for each in cluster.status() if each.alive and each.host == here}


def stopped(cluster: Cluster) -> set[int]:
    """Return the ranks of this host that are stopped, by a signal or a debugger."""
    return {rank for rank, pid in local_pids(cluster).items() if is_stopped(pid)}
