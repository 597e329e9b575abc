"""``hvd.elastic`` for Keras: a model and its optimizer that outlive a failure, and callbacks that commit them.

Words.
  snapshot  the variables' values at the last commit, as NumPy arrays
"""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping
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
from hvd_kernel.elastic.state import Snapshot
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
# TensorFlow's operations raise errors of TensorFlow's, which its loop knows.
run = importlib.import_module("hvd_kernel.tensorflow.elastic" if BACKEND == "tensorflow" else "hvd_kernel.elastic").run


class KerasState(ObjectState):
    """The state of a training with a Keras model: ``KerasState(model, optimizer, epoch=0, batch=0)``.

    Every keyword becomes an attribute.

    Parameters
    ----------
    model
        Built: it has its variables.
    optimizer
        None: the one that the model is compiled with. Its variables are made now.
    backend
        Horovod's, of Keras in a graph of TensorFlow 1; not used.

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

    def save(self) -> None:
        """Keep the variables and the values as they are now."""
        kept = self._values()
        super().save()
        self._snapshot = kept

    def restore(self) -> None:
        """Go back to what was kept; a variable that has been made since begins with zeros."""
        tracked = self._tracked()
        since = [np.zeros(each.shape, array_of(each).dtype) for each in tracked[len(self._snapshot) :]]
        assign(tracked, [*self._snapshot, *since])
        super().restore()

    def sync(self) -> None:
        """Take the variables and values of rank ``root``, and keep them. Collective.

        Raises
        ------
        ValueError
            The ranks' variables do not fit together: on every rank.
        """
        broadcast_variables(self._tracked(), self.root, "elastic.variables")
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

    def _tracked(self) -> list[Any]:
        return [*self.model.variables, *variables_of(self.optimizer)]

    def _values(self) -> list[Any]:
        return [np.array(array_of(each)) for each in self._tracked()]


class CommitStateCallback(_Callback):
    """Commits the state every ``batches_per_commit`` batches, and at the end of each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Count anew: a failure may have come between two commits."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Commit, if it is time."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(_Callback):
    """Keeps ``state.batch`` at the number of batches of this epoch that are done.

    After a failure the first epoch has only the rest of its batches, where Keras takes its number of steps from
    ``params`` (Keras 2); with Keras 3 give ``fit`` the data from ``state.batch`` on.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.steps_per_epoch: int | None = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Leave out what was done before the failure."""
        if self.params and self.params.get("steps"):
            self.steps_per_epoch = self.steps_per_epoch or self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Count."""
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Begin again."""
        self.state.batch = 0


class UpdateEpochStateCallback(_Callback):
    """Keeps ``state.epoch`` at the number of epochs that are done, also where ``fit`` is called again."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = 0

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Begin where the state is."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Count."""
        self.state.epoch = self.initial_epoch + epoch + 1
