"""Elastic states of TensorFlow: variables, or a Keras model with its optimizer, and plain Python values beside them.

Words.
  tracked   variables that are saved, restored and synced
  snapshot  their values at the last commit, as NumPy arrays: they outlive a session and cost no device memory
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_kernel.core import ops
from hvd_kernel.elastic import ObjectState
from hvd_kernel.elastic.state import Snapshot

_NAME = "elastic.variable"
_CARRIED = {"uint32": "int32", "uint64": "int64"}


class _VariablesState(ObjectState):
    """Saves, restores and syncs what ``_tracked`` returns; the rest is ObjectState's."""

    _session: Any = None
    _snapshot: tuple[Any, ...] = ()

    @abstractmethod
    def _tracked(self) -> list[Any]:
        """Return the variables that there are now."""

    def save(self) -> None:
        """Keep the variables and the values as they are now."""
        kept = self._values()
        super().save()
        self._snapshot = kept

    def restore(self) -> None:
        """Go back to what was kept; a variable that has been made since, as an optimizer's are, begins with zeros."""
        tracked = self._tracked()
        made_since = [
            np.zeros(each.shape, tf.as_dtype(each.dtype).as_numpy_dtype) for each in tracked[len(self._snapshot) :]
        ]
        self._assign(tracked, [*self._snapshot, *made_since])
        super().restore()

    def sync(self) -> None:
        """Take the variables and values of rank ``root``, and keep them. Collective.

        Raises
        ------
        ValueError
            The ranks' variables do not fit together: on every rank.
        """
        tracked = self._tracked()
        _check_alike([(tuple(each.shape), tf.as_dtype(each.dtype).base_dtype.name) for each in tracked])
        values = [
            _synced(value, self.root, f"{_NAME}.{number}") for number, value in enumerate(self._values_of(tracked))
        ]
        self._assign(tracked, values)
        super().sync()
        self._snapshot = tuple(values)

    def snapshot(self) -> Snapshot:
        """Return the variables and values that were saved; which variables are the same on all ranks is not known."""
        values = super().snapshot()
        return values._replace(own={**values.own, "variables": list(self._snapshot)})

    def load_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Take variables and values that were stored."""
        super().load_snapshot(snapshot, number)
        self._snapshot = tuple(snapshot.own["variables"])
        self.restore()

    def _values(self) -> tuple[Any, ...]:
        return tuple(self._values_of(self._tracked()))

    def _values_of(self, tracked: list[Any]) -> list[Any]:
        if self._session is not None:
            return [np.array(value) for value in self._session.run(tracked)]
        return [np.array(each.numpy()) for each in tracked]

    def _assign(self, tracked: list[Any], values: Iterable[Any]) -> None:
        for each, value in zip(tracked, values, strict=True):
            if self._session is None:
                each.assign(value)
            else:
                each.load(value, self._session)


class TensorFlowState(_VariablesState):
    """The state of a training with TensorFlow's variables: ``TensorFlowState([weights, bias], epoch=0, batch=0)``.

    Every keyword becomes an attribute.

    Parameters
    ----------
    variables
        None: all global variables of this graph.
    session
        In a graph of TensorFlow 1: where they have values; None: the default session.

    Raises
    ------
    ValueError
        In a graph there is no session.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self._session = _session_of(session)
        self._snapshot = self._values()
        super().__init__(**kwargs)

    def _tracked(self) -> list[Any]:
        return list(self.variables)


class TensorFlowKerasState(_VariablesState):
    """The state of a training with a Keras model: ``TensorFlowKerasState(model, optimizer, epoch=0, batch=0)``.

    Every keyword becomes an attribute.

    Parameters
    ----------
    model
        Built: it has its variables.
    optimizer
        None: the one that the model is compiled with. Its variables are made now, if it can.
    backend
        Horovod's: of Keras in a graph of TensorFlow 1; has ``get_session``.

    Raises
    ------
    ValueError
        The model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        self.backend = backend
        self._session = None if tf.executing_eagerly() else _session_of(backend and backend.get_session())
        _build(self.optimizer, model)
        self._snapshot = self._values()
        super().__init__(**kwargs)

    def _tracked(self) -> list[Any]:
        return [*self.model.variables, *_variables_of(self.optimizer)]


def _synced(value: Any, root: int, name: str) -> Any:
    """Return the root's array; types that the core does not know travel as others of their size."""
    carried = _CARRIED.get(value.dtype.name, value.dtype)
    return ops.broadcast(value.view(carried), root, name).view(value.dtype)


def _check_alike(forms: list[tuple[tuple[int, ...], str]]) -> None:
    """Refuse to go on where the ranks have different variables: one would wait for what the others never send."""
    first, *others = ops.allgather_object(forms, name="elastic.variables")
    for rank, theirs in enumerate(others, 1):
        if theirs != first:
            number = next((n for n, pair in enumerate(zip(first, theirs, strict=False)) if pair[0] != pair[1]), None)
            what = f"number {number} is {first[number]} and {theirs[number]}" if number is not None else "more or fewer"
            raise ValueError(
                f"The elastic state has {len(first)} variables on rank 0 and {len(theirs)} on rank {rank} ({what}): "
                "build the same model and the same optimizer on every rank before the state."
            )


def _session_of(given: Any) -> Any:
    """Return the session that variables have their values in; None in eager mode."""
    if given is not None or tf.executing_eagerly():
        return given
    session = tf.compat.v1.get_default_session()
    if session is None:
        raise ValueError("Variables of a graph have values in a session: give it as `session`, or be within one.")
    return session


def _build(optimizer: Any, model: Any) -> None:
    """Let the optimizer make its variables, so that all ranks have the same ones at the first sync."""
    build = getattr(optimizer, "build", None)
    if build is not None and not getattr(optimizer, "built", False) and tf.executing_eagerly():
        build(model.trainable_variables)


def _variables_of(optimizer: Any) -> list[Any]:
    """Return what Keras 3 has as a property, and Keras 2 and TensorFlow 1 as a method."""
    variables = getattr(optimizer, "variables", [])
    return list(variables() if callable(variables) else variables)
