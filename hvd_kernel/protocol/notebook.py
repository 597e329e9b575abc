"""Registries of a notebook: its cluster, the membership of its cells, and the variables to keep.

The magics register the cluster, ``run()`` looks it up. A rank registers the factory of a cell's membership for
``elastic.run``. A cell names, with ``hvd_kernel.keep("model", "opt")``, the variables that a replacement of its rank
receives; the values are read from a living rank when another one is replaced.

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


_make_membership: Callable[[], Any] | None = None


def provide_membership(make: Callable[[], Any] | None) -> None:
    """Register the factory of this process's ``elastic.membership.RankMembership``; None: unregister it."""
    global _make_membership  # noqa: PLW0603 - of the process
    _make_membership = make


def membership() -> Any:
    """Make and return the membership; None without a registered factory."""
    return None if _make_membership is None else _make_membership()


def has_membership() -> bool:
    """Return whether a factory is registered: this process is a rank of a notebook."""
    return _make_membership is not None


_kept: set[str] = set()


def keep(*names: str) -> None:
    """Copy these variables from a living rank to a rank that replaces a dead one; no names: copy none from now on.

    Parameters
    ----------
    *names
        Names of variables of the ranks.

    Raises
    ------
    ValueError
        If a name is not a Python identifier.

    Examples
    --------
    >>> hvd_kernel.keep("model", "opt")
    >>> hvd_kernel.keep("model.weight")
    Traceback (most recent call last):
    ValueError: keep('model.weight') must be given names of variables, as in keep('model', 'opt')
    >>> hvd_kernel.keep()
    """
    wrong = [name for name in names if not isinstance(name, str) or not name.isidentifier()]
    if wrong:
        raise ValueError(f"keep({wrong[0]!r}) must be given names of variables, as in keep('model', 'opt')")
    if not names:
        _kept.clear()
    _kept.update(names)


def kept_names() -> list[str]:
    """Return the names of the variables to copy."""
    return sorted(_kept)
