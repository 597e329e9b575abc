"""Elastic state of plain Python values, saved as copies, and of variables with assignment (TensorFlow, Keras) besides.

Terms.
  tracked  passed to the state by name: saved, restored and synced; other attributes are not
  snapshot  values of variables at the last commit, as NumPy arrays: they outlive a session and cost no device memory
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from hvd_kernel.core import ops, session
from hvd_kernel.elastic.state import Snapshot, State


class ObjectState(State):
    """Plain Python values, tracked under their keyword names: ``ObjectState(epoch=0, history=[])``.

    Unlike Horovod's it saves copies, so changes in place after a commit are undone too.

    Parameters
    ----------
    bcast_object, get_rank
        As in ``State``.
    **kwargs
        Values by name: attributes of the state. They can be copied (``copy.deepcopy``) and pickled.

    Raises
    ------
    TypeError
        A value cannot be copied; from ``commit`` too.

    Examples
    --------
    >>> state = hvd.elastic.ObjectState(epoch=0, history=[])
    >>> state.epoch, state.history = 1, [0.5]
    >>> state.commit()
    >>> state.history.append(0.25)
    >>> state.restore()
    >>> state.epoch, state.history
    (1, [0.5])
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = ops.broadcast_object,
        get_rank: Callable[[], int] = session.rank,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        self._saved_state: dict[str, Any] = {}
        self._step_state: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = copy.deepcopy(kwargs)

    def save(self) -> None:
        """Copy the tracked values."""
        self._saved_state = copy.deepcopy(self._now())

    def restore(self) -> None:
        """Set the tracked names to copies of the saved values, which may be needed again."""
        self._set_values(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Load the values of rank ``root``, and save them. Collective."""
        if self._saved_state:
            self._set_values(self._from_root(self._now()))
            ObjectState.save(self)

    def keep_step(self) -> None:
        """Copy the tracked values, beside those of the last commit."""
        self._step_state = copy.deepcopy(self._now())

    def undo_step(self) -> None:
        """Set the tracked names to copies of the values that the last step has kept."""
        self._set_values(copy.deepcopy(self._step_state))

    def snapshot(self) -> Snapshot:
        """Return the values that were saved."""
        return Snapshot({}, {"values": self._saved_state})

    def load_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Load stored values of the names that are tracked here; other tracked names keep their values."""
        stored = snapshot.of_rank_0["values"]
        self._saved_state |= {name: stored[name] for name in self._saved_state if name in stored}
        self._set_values(copy.deepcopy(self._saved_state))
        self._number = self._saved_number = number

    def _from_root(self, value: Any) -> Any:
        """Return the root's value; that of rank 0 through ``bcast_object``, which supports no other root."""
        return ops.broadcast_object(value, self.root) if self.root else self._bcast_object(value)

    def _now(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _set_values(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


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
        """Return the saved variables and values, all ``of_rank_0``: it is unknown which are the same on all ranks."""
        values = super().snapshot()
        return values._replace(of_rank_0={**values.of_rank_0, "variables": list(self._snapshot)})

    def load_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Load stored variables and values."""
        super().load_snapshot(snapshot, number)
        self._snapshot = list(snapshot.of_rank_0["variables"])
        self.restore()
