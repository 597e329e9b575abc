"""Membership of a rank in a cell, as ``elastic.run`` sees it: the notebook may replace who dies."""

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
    """Ranks of a notebook's cell."""

    def __init__(self, cell: ElasticCell) -> None:
        self._cell = cell
        self._commits = Commits()
        self._left: tuple[str, int] = "", 0  # why the last communicator was left, and the commits of then

    @property
    def root(self) -> int | None:  # type: ignore[override]
        """As the notebook has chosen: of those with the newest values the first."""
        return self._cell.root

    @property
    def fresh(self) -> tuple[int, ...]:  # type: ignore[override]
        """As the notebook says."""
        return self._cell.fresh

    def can_recover_from(self, error: Exception) -> bool:
        """Also from a death, where the notebook replaces the dead."""
        if self._cell.is_the_notebooks and isinstance(error, RankDied):
            return ENDED not in str(error)
        return SameRanks().can_recover_from(error)

    def leave(self, reason: str | None, step: int) -> None:
        """Keep it for the notebook."""
        self._left = reason or "", step

    def reset_communicator(self, peers: PeerProcesses) -> None:
        """Wait for the notebook, where it is its business."""
        reason, commits = self._left
        lost = self._commits.lost(commits) if reason else 0
        if self._cell.is_the_notebooks:
            self._cell.wait(reason, commits, lost)
        else:
            self._cell.tell_undone(lost)
            super().reset_communicator(peers)

    @contextmanager
    def entered(self, *, resumes: bool) -> Iterator[None]:  # noqa: ARG002 - nobody restarts a cell's ranks
        """Count the commits, and hear of ranks that come or leave."""
        for state in notification_manager.listeners:
            if isinstance(state, State):
                state.register_commit_callbacks([partial(self._note, state)])
        heard = notification_manager
        with self._cell.entered(heard.handle_hosts_updated, heard.forget_host_updates):
            yield

    def _note(self, state: State, *_committed: object) -> None:
        self._commits.note(state.commit_number)


class Commits:
    """Optimizer steps that a failure undoes: those since the last commit, or step that all ranks have voted for."""

    def __init__(self) -> None:
        self._at = metrics.snapshot().step
        self._number = 0

    def note(self, number: int) -> None:
        """Take note of a commit."""
        self._at, self._number = metrics.snapshot().step, number

    def lost(self, number: int) -> int:
        """Return how many are undone where a failure goes back to this commit or voted step."""
        return max(0, metrics.snapshot().step - self._at - max(0, number - self._number))
