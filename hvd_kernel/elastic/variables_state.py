"""Elastic state of variables with assignment, as in TensorFlow and Keras, together with Python values.

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
    """ObjectState that also saves, restores and syncs the variables returned by ``_tracked``."""

    _snapshot: list[Any]

    @abstractmethod
    def _tracked(self) -> list[Any]:
        """Return the variables that exist now."""

    @abstractmethod
    def _values(self) -> list[Any]:
        """Return copies of their values, as NumPy arrays."""

    @abstractmethod
    def _zeros(self, variable: Any) -> Any:
        """Return an array of zeros with a variable's shape and type."""

    @abstractmethod
    def _assign(self, tracked: Sequence[Any], values: Sequence[Any]) -> None:
        """Assign values to variables."""

    @abstractmethod
    def _broadcast_root(self) -> None:
        """Broadcast the variables of rank ``root`` to all ranks. Collective."""

    def save(self) -> None:
        """Save the current variables and values."""
        values = self._values()
        super().save()
        self._snapshot = values

    def restore(self) -> None:
        """Restore the saved values; set variables created since then, such as an optimizer's, to zeros."""
        tracked = self._tracked()
        created_since = [self._zeros(variable) for variable in tracked[len(self._snapshot) :]]
        self._assign(tracked, [*self._snapshot, *created_since])
        super().restore()

    def sync(self) -> None:
        """Load the variables and values of rank ``root``, and save them. Collective.

        Raises
        ------
        ValueError
            On every rank: the variables of the ranks do not match.
        """
        self._broadcast_root()
        super().sync()
        self._snapshot = self._values()

    def snapshot(self) -> Snapshot:
        """Return the saved variables and values, all as ``own``: it is unknown which are the same on all ranks."""
        values = super().snapshot()
        return values._replace(own={**values.own, "variables": list(self._snapshot)})

    def load_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Load stored variables and values."""
        super().load_snapshot(snapshot, number)
        self._snapshot = list(snapshot.own["variables"])
        self.restore()
