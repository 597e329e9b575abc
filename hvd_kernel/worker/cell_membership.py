"""Membership of a rank in a cell, as ``elastic.run`` sees it: the notebook may replace dead ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from hvd_kernel.core import metrics
from hvd_kernel.elastic.membership import ENDED, RankMembership, SameRanks
from hvd_kernel.elastic.state import State
from hvd_kernel.elastic.updates import notification_manager
from hvd_kernel.errors import RankDied

if TYPE_CHECKING:
    from hvd_kernel.elastic.peer_processes import PeerProcesses
    from hvd_kernel.worker.elastic_cell import ElasticCell


class CellRanks(RankMembership):
    """Membership in a notebook's cell."""

    def __init__(self, cell: ElasticCell) -> None:
        self._cell = cell
        self._commits = Commits()
        self._left: tuple[str, int] = "", 0  # reason for leaving the last communicator, and the commits at that time

    @property
    def root(self) -> int | None:  # type: ignore[override]
        """The notebook's choice: the first rank with the newest values."""
        return self._cell.root

    @property
    def fresh(self) -> tuple[int, ...]:  # type: ignore[override]
        """The ranks that the notebook has marked as new."""
        return self._cell.fresh

    def can_recover_from(self, error: Exception) -> bool:
        """Return True also for a death if the notebook replaces dead ranks."""
        if self._cell.waits_for_notebook and isinstance(error, RankDied):
            return ENDED not in str(error)
        return SameRanks().can_recover_from(error)

    def leave(self, reason: str | None, step: int) -> None:
        """Record it for the notebook."""
        self._left = reason or "", step

    def reset_communicator(self, peers: PeerProcesses) -> None:
        """Wait for the notebook if it controls the reset."""
        reason, commits = self._left
        lost = self._commits.lost(commits) if reason else 0
        if self._cell.waits_for_notebook:
            self._cell.wait(reason, commits, lost)
        else:
            self._cell.report_undone(lost)
            super().reset_communicator(peers)

    @contextmanager
    def entered(self, *, resumes: bool) -> Iterator[None]:  # noqa: ARG002 - a cell is not restarted from files
        """Count the commits, and subscribe to changes of ranks."""
        for state in notification_manager.listeners:
            if isinstance(state, State):
                state.register_commit_callbacks([partial(self._record, state)])
        manager = notification_manager
        with self._cell.entered(manager.handle_hosts_updated, manager.forget_host_updates):
            yield

    def _record(self, state: State, *_numbers: object) -> None:
        self._commits.record(state.commit_number)


class Commits:
    """Counter of optimizer steps that a failure undoes: those since the last commit or voted step."""

    def __init__(self) -> None:
        self._at = metrics.snapshot().step
        self._number = 0

    def record(self, number: int) -> None:
        """Record a commit."""
        self._at, self._number = metrics.snapshot().step, number

    def lost(self, number: int) -> int:
        """Return the number of steps that are undone by returning to this commit or voted step."""
        return max(0, metrics.snapshot().step - self._at - max(0, number - self._number))
