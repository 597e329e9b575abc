"""Elastic state of JAX: trees of arrays, and plain Python values beside them.

Arrays are kept as NumPy arrays of the host: a donated array is gone after the step that it was given to.
"""

from __future__ import annotations

import copy
from typing import Any

import jax
import numpy as np

from hvd_kernel.core import ops
from hvd_kernel.elastic import ObjectState


class JaxState(ObjectState):
    """The state of a training with JAX: ``JaxState(params=params, opt_state=opt_state, epoch=0)``.

    Every keyword becomes an attribute: a tree of arrays, or anything that can be copied.

    Example
    -------
    ::

        state.params, state.opt_state = step(state.params, state.opt_state, batch)
        state.commit()
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = {name: _kept(value) for name, value in kwargs.items()}

    def save(self) -> None:
        """Keep the values as they are now."""
        self._saved_state = {name: _kept(value) for name, value in self._now().items()}

    def restore(self) -> None:
        """Go back to what was kept."""
        self._set_values({name: _given(value) for name, value in self._saved_state.items()})

    def sync(self) -> None:
        """Take the values of rank ``root``, and keep them. Collective."""
        if not self._saved_state:
            return
        leaves, form = jax.tree.flatten({name: _kept(value) for name, value in self._now().items()})
        is_array = [isinstance(each, _Array) for each in leaves]
        plain = [None if array else each for each, array in zip(leaves, is_array, strict=True)]
        plain, form, is_array, shapes = self._from_root(
            (
                plain,
                form,
                is_array,
                [(each.value.shape, each.value.dtype) for each in leaves if isinstance(each, _Array)],
            )
        )
        mine = [each.value for each in leaves if isinstance(each, _Array)]
        if [(each.shape, each.dtype) for each in mine] != shapes:
            mine = [np.zeros(shape, dtype) for shape, dtype in shapes]
        arrays = iter([ops.broadcast(each, self.root, f"elastic.array.{number}") for number, each in enumerate(mine)])
        synced = [_Array(next(arrays)) if array else each for each, array in zip(plain, is_array, strict=True)]
        self._saved_state = dict(jax.tree.unflatten(form, synced))
        self.restore()

    def keep_step(self) -> None:
        """Keep the values, beside those of the last commit."""
        self._step_state = {name: _kept(value) for name, value in self._now().items()}

    def undo_step(self) -> None:
        """Go back to what the last step has kept."""
        self._set_values({name: _given(value) for name, value in self._step_state.items()})

    def reset(self) -> None:
        """Have JAX compile again what knows how many ranks there were."""
        jax.clear_caches()

    def load_snapshot(self, snapshot: Any, number: int) -> None:
        """Take values that were stored, under the names that are tracked here; others stay as they are."""
        stored = snapshot.own["values"]
        self._saved_state |= {name: stored[name] for name in self._saved_state if name in stored}
        self.restore()
        self._number = self._saved_number = number


class _Array:
    """A JAX array on the host; a leaf of a tree."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _kept(tree: Any) -> Any:
    return jax.tree.map(
        lambda each: _Array(np.array(each)) if isinstance(each, jax.Array) else copy.deepcopy(each), tree
    )


def _given(tree: Any) -> Any:
    return jax.tree.map(
        lambda each: jax.device_put(each.value) if isinstance(each, _Array) else copy.deepcopy(each), tree
    )
