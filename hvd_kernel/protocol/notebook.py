"""The notebook's cluster, where ``run()`` finds it: the magics register it here, and neither imports the other.

Terms.
  task      an object that every rank gets a copy of; ``task.perform()`` runs there as a cell does, then it comes back
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from hvd_kernel.protocol.messages import MetricsSample, RankLeft


@dataclass(frozen=True)
class Performed:
    """What became of a task: every rank's copy, or the error with which its cell failed and the copy of that rank."""

    tasks: Mapping[int, Any]
    error: Exception | None = None
    rank: int = 0
    died: bool = False


class NotebookCluster(Protocol):
    """The ranks of a notebook, which stay between calls."""

    def perform(self, task: Any, wanted: Callable[[Any], Any], *, instead: bool) -> Performed | None:
        """Have every rank perform a task; None: the ranks that live are others than those that are wanted.

        Parameters
        ----------
        task
            Can be pickled; has ``perform()``, and afterwards ``connected``: whether communication is as it was.
        wanted
            Turns the spec of the running cluster (None where nothing runs) into that of the cluster that is wanted.
        instead
            Start the wanted ranks in place of others, rather than return None.
        """

    def panel(self, ranks: int, title: str) -> AbstractContextManager[Callable[[MetricsSample | RankLeft], None]]:
        """Show what ranks of a job do that are not the notebook's, as long as the ``with`` lasts.

        What it gives takes a sample of a rank; with the first one the panel begins.
        """


_clusters: dict[Any, NotebookCluster] = {}


def register(shell: Any, cluster: NotebookCluster) -> None:
    """Say which cluster is that of an IPython shell."""
    _clusters[shell] = cluster


def unregister(shell: Any) -> None:
    """Take it back."""
    _clusters.pop(shell, None)


def cluster_of(shell: Any) -> NotebookCluster | None:
    """Return the cluster of a shell; None where the magics are not loaded there."""
    return _clusters.get(shell)
