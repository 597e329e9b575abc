"""``hvd.elastic`` for Keras: a state with a model and its optimizer that survives a failure, and callbacks for it."""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping, Sequence
from typing import Any

import numpy as np

from hvd_kernel.elastic import (
    Checkpoint,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    StepGuard,
)
from hvd_kernel.elastic.object_state import VariablesState
from hvd_kernel.keras.flavour import BACKEND, array_of, assign, keras, variables_of
from hvd_kernel.keras.functions import broadcast_variables

__all__ = [
    "Checkpoint",
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "StepGuard",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

_Callback: Any = keras.callbacks.Callback
Logs = MutableMapping[str, Any] | None
# Operations of a graph or a program raise errors of the framework, which its loop handles.
_LOOPS = {"tensorflow": "hvd_kernel.tensorflow.elastic", "jax": "hvd_kernel.jax.elastic", "torch": "hvd_kernel.elastic"}
run = importlib.import_module(_LOOPS[BACKEND]).run


class KerasState(VariablesState):
    """State of a training with a Keras model: ``KerasState(model, optimizer, epoch=0, batch=0)``.

    Every keyword becomes an attribute.

    Parameters
    ----------
    model
        A built model, which has its variables.
    optimizer
        None: the optimizer that the model is compiled with. Its variables are created now.
    backend
        Not used: Horovod's parameter for Keras in a graph of TensorFlow 1.

    Raises
    ------
    ValueError
        The model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        build = getattr(self.optimizer, "build", None)
        if build is not None and not getattr(self.optimizer, "built", getattr(self.optimizer, "_built", False)):
            build(model.trainable_variables)
        self._snapshot = self._values()
        super().__init__(**kwargs)

    def _tracked(self) -> list[Any]:
        return [*self.model.variables, *variables_of(self.optimizer)]

    def _values(self) -> list[Any]:
        return [np.array(array_of(variable)) for variable in self._tracked()]

    def _zeros(self, variable: Any) -> Any:
        return np.zeros(variable.shape, array_of(variable).dtype)

    def _assign(self, tracked: Sequence[Any], values: Sequence[Any]) -> None:
        assign(tracked, values)

    def _broadcast_root(self) -> None:
        broadcast_variables(self._tracked(), self.root, "elastic.variables")


class CommitStateCallback(_Callback):
    """Commits the state every ``batches_per_commit`` batches, and at the end of each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Reset the count, as a failure may have occurred between two commits."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Commit after ``batches_per_commit`` batches."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Commit at the end of the epoch."""
        self.state.commit()


class UpdateBatchStateCallback(_Callback):
    """Sets ``state.batch`` to the number of completed batches of the epoch.

    After a failure the first epoch has only its remaining batches if Keras reads the number of steps from ``params``
    (Keras 2); with Keras 3 pass ``fit`` the data starting at ``state.batch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Skip the batches that were completed before the failure."""
        if self.params and self.params.get("steps"):
            self.steps_per_epoch = self.steps_per_epoch or self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Count the batch."""
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Reset the count."""
        self.state.batch = 0


class UpdateEpochStateCallback(_Callback):
    """Sets ``state.epoch`` to the number of completed epochs, also over several calls of ``fit``."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = 0

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Start at the epoch of the state."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Count the epoch."""
        self.state.epoch = self.initial_epoch + epoch + 1
