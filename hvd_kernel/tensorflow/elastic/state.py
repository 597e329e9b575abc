"""Elastic states of TensorFlow: variables, or a Keras model with its optimizer, and plain Python values beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_kernel.core import ops
from hvd_kernel.elastic.variables_state import VariablesState

_NAME = "elastic.variable"
_CARRIED = {"uint32": "int32", "uint64": "int64"}


class _VariablesState(VariablesState):
    """Variables of TensorFlow: in eager mode, or of a graph with a session."""

    _session: Any = None

    def _values(self) -> list[Any]:
        if self._session is not None:
            return [np.array(value) for value in self._session.run(self._tracked())]
        return [np.array(each.numpy()) for each in self._tracked()]

    def _zeros(self, variable: Any) -> Any:
        return np.zeros(variable.shape, tf.as_dtype(variable.dtype).as_numpy_dtype)

    def _assign(self, tracked: Sequence[Any], values: Sequence[Any]) -> None:
        for each, value in zip(tracked, values, strict=True):
            if self._session is None:
                each.assign(value)
            else:
                each.load(value, self._session)

    def _broadcast_root(self) -> None:
        tracked = self._tracked()
        _check_alike([(tuple(each.shape), tf.as_dtype(each.dtype).base_dtype.name) for each in tracked])
        values = enumerate(self._values())
        self._assign(tracked, [_synced(value, self.root, f"{_NAME}.{number}") for number, value in values])


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
