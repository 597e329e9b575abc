"""``hvd.elastic``: training that survives a failure, with JAX's parameters as its state.

::

    state = hvd.elastic.JaxState(params=params, opt_state=opt_state, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state): ...                    # calls state.commit() regularly; a failure restores the last commit

    train(state)
"""

from __future__ import annotations

import copy
from typing import Any

import jax
import numpy as np

from hvd_kernel.core import ops
from hvd_kernel.elastic import (
    Checkpoint,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HostUpdateResult,
    ObjectState,
    State,
    StepGuard,
    notification_manager,
    run_fn,
)
from hvd_kernel.elastic.run import translating
from hvd_kernel.jax import library

__all__ = [
    "Checkpoint",
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "JaxState",
    "ObjectState",
    "State",
    "StepGuard",
    "notification_manager",
    "run",
    "run_fn",
]

run = translating(library.RAISED, library.translated)


class JaxState(ObjectState):
    """State of a training with JAX: ``JaxState(params=params, opt_state=opt_state, epoch=0)``.

    Every keyword becomes an attribute: a tree of arrays, or any value that can be copied.

    Arrays are saved as NumPy arrays of the host: a donated array is invalid after the step that it was donated to.

    Examples
    --------
    ::

        state.params, state.opt_state = step(state.params, state.opt_state, batch)
        state.commit()
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = {name: _saved(value) for name, value in kwargs.items()}

    def save(self) -> None:
        """Save the current values."""
        self._saved_state = {name: _saved(value) for name, value in self._now().items()}

    def restore(self) -> None:
        """Restore the saved values."""
        self._set_values({name: _restored(value) for name, value in self._saved_state.items()})

    def sync(self) -> None:
        """Receive the values of rank ``root``, and save them. Collective."""
        if not self._saved_state:
            return
        leaves, form = jax.tree.flatten({name: _saved(value) for name, value in self._now().items()})
        is_array = [isinstance(leaf, _Array) for leaf in leaves]
        plain = [None if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]
        local = [leaf.value for leaf in leaves if isinstance(leaf, _Array)]
        shapes = [(array.shape, array.dtype) for array in local]
        plain, form, is_array, root_shapes = self._from_root((plain, form, is_array, shapes))
        if shapes != root_shapes:
            local = [np.zeros(shape, dtype) for shape, dtype in root_shapes]
        arrays = iter([ops.broadcast(array, self.root, f"elastic.array.{i}") for i, array in enumerate(local)])
        synced = [_Array(next(arrays)) if array else value for value, array in zip(plain, is_array, strict=True)]
        self._saved_state = dict(jax.tree.unflatten(form, synced))
        self.restore()

    def keep_step(self) -> None:
        """Save the values of a step, in addition to those of the last commit."""
        self._step_state = {name: _saved(value) for name, value in self._now().items()}

    def undo_step(self) -> None:
        """Restore the values of the last step."""
        self._set_values({name: _restored(value) for name, value in self._step_state.items()})

    def reset(self) -> None:
        """Clear JAX's compiled programs, which depend on the number of ranks."""
        jax.clear_caches()

    def load_snapshot(self, snapshot: Any, number: int) -> None:
        """Load stored values of the names that are tracked here; other names keep their values."""
        stored = snapshot.of_rank_0["values"]
        self._saved_state |= {name: stored[name] for name in self._saved_state if name in stored}
        self.restore()
        self._number = self._saved_number = number


class _Array:
    """Copy of a JAX array on the host, as a leaf of a tree."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _saved(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: _Array(np.array(leaf)) if isinstance(leaf, jax.Array) else copy.deepcopy(leaf), tree
    )


def _restored(tree: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jax.device_put(leaf.value) if isinstance(leaf, _Array) else copy.deepcopy(leaf), tree
    )
