"""Registry of the notebook's cluster: the magics register it, ``run()`` looks it up, and neither imports the other.

Terms.
  task      an object of which every rank receives a copy, runs ``task.perform()`` like a cell, and returns the copy
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from hvd_kernel.protocol.messages import MetricsSample, RankLeft


@dataclass(frozen=True)
class Performed:
    """The outcome of a task: every rank's copy, or the error of the failed cell and the copy of the failing rank."""

    tasks: Mapping[int, Any]
    error: Exception | None = None
    rank: int = 0
    died: bool = False


class NotebookCluster(Protocol):
    """The ranks of a notebook, which persist between calls."""

    def perform(self, task: Any, spec_of: Callable[[Any], Any], *, instead: bool) -> Performed | None:
        """Run a task on every rank; None if the running ranks do not match the spec.

        Parameters
        ----------
        task
            Can be pickled; has ``perform()``, and afterwards ``connected``: whether communication is intact.
        spec_of
            Maps the spec of the running cluster (None if there is none) to that of the cluster to run on.
        instead
            Replace ranks that do not match, rather than return None.
        """

    def panel(self, ranks: int, title: str) -> AbstractContextManager[Callable[[MetricsSample | RankLeft], None]]:
        """Show a panel for a job whose ranks are not the notebook's, for the duration of the ``with`` block.

        The context's value accepts samples of the ranks; the first one opens the panel.
        """


_clusters: dict[Any, NotebookCluster] = {}


def register(shell: Any, cluster: NotebookCluster) -> None:
    """Register the cluster of an IPython shell."""
    _clusters[shell] = cluster


def unregister(shell: Any) -> None:
    """Remove the cluster of a shell."""
    _clusters.pop(shell, None)


def cluster_of(shell: Any) -> NotebookCluster | None:
    """Return the cluster of a shell; None if the magics are not loaded there."""
    return _clusters.get(shell)
