"""Inquiry into where a cluster's ranks are: query them, and inspect a rank that does not answer from outside.

Terms.
  inquiry   one query to some ranks; it blocks only in ``wait_all``
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hvd_kernel.diagnosis.written_stacks import c_functions, python_calls, request_stacks
from hvd_kernel.processes.lifetime import is_stopped
from hvd_kernel.protocol.messages import Whereabouts, from_content

PATIENCE_S = 1.0
"""A rank that has not answered by then does not run Python."""


class Answers(Protocol):
    """Collects the ranks' answers to one query."""

    def wait_all(self, timeout: float) -> object:
        """Wait until all answers have arrived, or until the timeout."""

    def so_far(self) -> Mapping[int, Mapping[str, Any]]:
        """Return the answers that have arrived."""


class Cluster(Protocol):
    """The part of ``cluster.Session`` that an inquiry needs."""

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
        """The current or most recent cell: its number ``cell`` and the file name ``file`` of its code; or None."""

    def status(self) -> Sequence[Any]:
        """Every rank's process: ``rank``, ``pid``, ``host``, ``alive``."""

    def post(self, handler: str, ranks: Sequence[int] | None, *, urgent: bool = False) -> Answers:
        """Send a query without waiting for the answers."""


def locate(cluster: Cluster, ranks: Collection[int], patience: float = PATIENCE_S) -> dict[int, Whereabouts]:
    """Return where ranks are. Waits for slow ranks, then inspects the silent ones from outside."""
    inquiry = Inquiry(cluster, ranks)
    inquiry.wait_all(patience)
    return inquiry.answers() | inquiry.from_outside(inquiry.silent())


class Inquiry:
    """Queries ranks for where they are."""

    def __init__(self, cluster: Cluster, ranks: Collection[int]) -> None:
        self._cluster = cluster
        self._ranks = set(ranks)
        self._answers = cluster.post("stacks", sorted(ranks), urgent=True)

    def wait_all(self, timeout: float) -> None:
        """Wait until all ranks have answered, or until the timeout."""
        self._answers.wait_all(timeout)

    def answers(self) -> dict[int, Whereabouts]:
        """Return the positions of the ranks that have answered."""
        answers = self._answers.so_far()
        return {rank: _whereabouts(rank, content) for rank, content in answers.items() if rank in self._ranks}

    def silent(self) -> set[int]:
        """Return the ranks that have not answered."""
        return self._ranks - set(self._answers.so_far())

    def from_outside(self, ranks: Collection[int]) -> dict[int, Whereabouts]:
        """Return the positions of ranks as seen by the host; waits for the signal handlers of running ranks."""
        halted, pids, dead = stopped(self._cluster), local_pids(self._cluster), set(self._cluster.dead)
        places: dict[int, Whereabouts] = {}
        for rank in ranks:
            if rank in dead or rank in halted:
                places[rank] = Whereabouts(rank, "dead" if rank in dead else "stopped")
            else:
                places[rank] = self._by_signal(rank, pids.get(rank))
        return places

    def _by_signal(self, rank: int, pid: int | None) -> Whereabouts:
        lines = [] if pid is None else request_stacks(self._cluster.folder, rank, pid)
        run = self._cluster.latest
        cells = {run.file: f"cell {run.cell}"} if run else {}
        return Whereabouts(rank, "silent", frames=python_calls(lines, cells), native=c_functions(lines))


def _whereabouts(rank: int, content: object) -> Whereabouts:
    """Decode an answer; an error means that the rank has died, or that it runs an incompatible version."""
    wire = dict(content) if isinstance(content, dict) else {}
    return Whereabouts(rank, "dead") if "error" in wire else from_content(Whereabouts, wire)


def local_pids(cluster: Cluster) -> dict[int, int]:
    """Return the processes of the living ranks on this host."""
    here = socket.gethostname()
    return {process.rank: process.pid for process in cluster.status() if process.alive and process.host == here}


def stopped(cluster: Cluster) -> set[int]:
    """Return the ranks of this host that are stopped, by a signal or a debugger."""
    return {rank for rank, pid in local_pids(cluster).items() if is_stopped(pid)}
