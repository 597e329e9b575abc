"""Elastic state of variables that are assigned to, as TensorFlow's and Keras's are, and Python values beside them.

Terms.
  tracked   variables that are saved, restored and synced
  snapshot  their values at the last commit, as NumPy arrays: they outlive a session and cost no device memory
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from hvd_kernel.elastic.object_state import ObjectState
from hvd_kernel.elastic.state import Snapshot


class VariablesState(ObjectState):
    """Saves, restores and syncs what ``_tracked`` returns; the rest is ObjectState's."""

    _snapshot: list[Any]

    @abstractmethod
    def _tracked(self) -> list[Any]:
        """Return the variables that there are now."""

    @abstractmethod
    def _values(self) -> list[Any]:
        """Return their values, as NumPy arrays of their own."""

    @abstractmethod
    def _zeros(self, variable: Any) -> Any:
        """Return an array of zeros, of a variable's shape and type."""

    @abstractmethod
    def _assign(self, tracked: Sequence[Any], values: Sequence[Any]) -> None:
        """Give variables values."""

    @abstractmethod
    def _take_root(self) -> None:
        """Have the variables take those of rank ``root``. Collective."""

    def save(self) -> None:
        """Keep the variables and the values as they are now."""
        kept = self._values()
        super().save()
        self._snapshot = kept

    def restore(self) -> None:
        """Go back to what was kept; a variable that has been made since, as an optimizer's are, begins with zeros."""
        tracked = self._tracked()
        made_since = [self._zeros(each) for each in tracked[len(self._snapshot) :]]
        self._assign(tracked, [*self._snapshot, *made_since])
        super().restore()

    def sync(self) -> None:
        """Take the variables and values of rank ``root``, and keep them. Collective.

        Raises
        ------
        ValueError
            The ranks' variables do not fit together: on every rank.
        """
        self._take_root()
        super().sync()
        self._snapshot = self._values()

    def snapshot(self) -> Snapshot:
        """Return the variables and values that were saved; which variables are the same on all ranks is not known."""
        values = super().snapshot()
        return values._replace(own={**values.own, "variables": list(self._snapshot)})

    def load_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Take variables and values that were stored."""
        super().load_snapshot(snapshot, number)
        self._snapshot = list(snapshot.own["variables"])
        self.restore()
