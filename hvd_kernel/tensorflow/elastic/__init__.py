"""``hvd.elastic``: training that survives a failure, with TensorFlow's variables, models and optimizers as its state.

::

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state): ...                    # calls state.commit() regularly; a failure restores the last commit

    train(state)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

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
from hvd_kernel.elastic.object_state import VariablesState
from hvd_kernel.elastic.run import translating
from hvd_kernel.tensorflow import library

__all__ = [
    "Checkpoint",
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "StepGuard",
    "TensorFlowKerasState",
    "TensorFlowState",
    "notification_manager",
    "run",
    "run_fn",
]

run = translating((tf.errors.OpError,), library.translated)

NO_SESSION = "Variables of a graph have values in a session: pass it as `session`, or enter one."

_NAME = "elastic.variable"
_SENT_AS = {"uint32": "int32", "uint64": "int64"}


class _VariablesState(VariablesState):
    """State with variables of TensorFlow, in eager mode, or of a graph with a session."""

    _session: Any = None

    def _values(self) -> list[Any]:
        if self._session is not None:
            return [np.array(value) for value in self._session.run(self._tracked())]
        return [np.array(variable.numpy()) for variable in self._tracked()]

    def _zeros(self, variable: Any) -> Any:
        return np.zeros(variable.shape, tf.as_dtype(variable.dtype).as_numpy_dtype)

    def _assign(self, tracked: Sequence[Any], values: Sequence[Any]) -> None:
        for variable, value in zip(tracked, values, strict=True):
            if self._session is None:
                variable.assign(value)
            else:
                variable.load(value, self._session)

    def _broadcast_root(self) -> None:
        tracked = self._tracked()
        _check_equal([(tuple(variable.shape), tf.as_dtype(variable.dtype).base_dtype.name) for variable in tracked])
        values = enumerate(self._values())
        self._assign(tracked, [_synced(value, self.root, f"{_NAME}.{number}") for number, value in values])


class TensorFlowState(_VariablesState):
    """State of a training with TensorFlow's variables: ``TensorFlowState([weights, bias], epoch=0, batch=0)``.

    Every keyword becomes an attribute.

    Parameters
    ----------
    variables
        None: all global variables of this graph.
    session
        In a graph of TensorFlow 1, the session with the variables' values; None: the default session.

    Raises
    ------
    ValueError
        The variables belong to a graph, and there is no session.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        self._session = _session_of(session)
        self._snapshot = self._values()
        super().__init__(**kwargs)

    def _tracked(self) -> list[Any]:
        return list(self.variables)


class TensorFlowKerasState(_VariablesState):
    """State of a training with a Keras model: ``TensorFlowKerasState(model, optimizer, epoch=0, batch=0)``.

    Every keyword becomes an attribute.

    Parameters
    ----------
    model
        A built model, which has its variables.
    optimizer
        None: the optimizer that the model is compiled with. Its variables are created now, if possible.
    backend
        Keras's backend module in a graph of TensorFlow 1, with ``get_session``; Horovod's parameter.

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
    """Return the root's array; types that the core lacks are sent as others of their size."""
    sent_as = _SENT_AS.get(value.dtype.name, value.dtype)
    return ops.broadcast(value.view(sent_as), root, name).view(value.dtype)


def _check_equal(forms: list[tuple[tuple[int, ...], str]]) -> None:
    """Raise an error if the ranks have different variables, which would wait for each other forever."""
    first, *others = ops.allgather_object(forms, name="elastic.variables")
    for rank, other in enumerate(others, 1):
        if other != first:
            pairs = enumerate(zip(first, other, strict=False))
            number = next((number for number, pair in pairs if pair[0] != pair[1]), None)
            differs = "more or fewer" if number is None else f"number {number} is {first[number]} and {other[number]}"
            raise ValueError(
                f"The elastic state has {len(first)} variables on rank 0 and {len(other)} on rank {rank} ({differs}): "
                "build the same model and the same optimizer on every rank before the state."
            )


def _session_of(session: Any) -> Any:
    """Return the session with the variables' values; None in eager mode."""
    if session is not None or tf.executing_eagerly():
        return session
    default = tf.compat.v1.get_default_session()
    if default is None:
        raise ValueError(NO_SESSION)
    return default


def _build(optimizer: Any, model: Any) -> None:
    """Create the optimizer's variables, so that all ranks have the same variables at the first sync."""
    build = getattr(optimizer, "build", None)
    if build is not None and not getattr(optimizer, "built", False) and tf.executing_eagerly():
        build(model.trainable_variables)


def _variables_of(optimizer: Any) -> list[Any]:
    """Return the optimizer's variables: a property in Keras 3, a method in Keras 2 and TensorFlow 1."""
    variables = getattr(optimizer, "variables", [])
    return list(variables() if callable(variables) else variables)
