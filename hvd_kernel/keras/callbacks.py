"""Keras callbacks: the same start, metrics and learning rates on all ranks. Horovod's names and signatures.

::

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),        # before those that look at metrics: EarlyStopping, for one
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=3),
    ]
    model.fit(x, y, callbacks=callbacks, verbose=int(hvd.rank() == 0))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np

from hvd_kernel.core import ops
from hvd_kernel.core.tensor import Array
from hvd_kernel.keras.checks import ready
from hvd_kernel.keras.flavour import array_of, keras, numbers_of, variables_of, weights_of
from hvd_kernel.keras.functions import broadcast_variables
from hvd_kernel.keras.rates import LearningRateScheduleCallback, LearningRateWarmupCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_Callback: Any = keras.callbacks.Callback
_ModelCheckpoint: Any = keras.callbacks.ModelCheckpoint
Logs = MutableMapping[str, Any] | None

METRIC_SHAPES_DIFFER = (
    "MetricAverageCallback: metric {name!r} has different shapes on the ranks and cannot be averaged: {shapes}. "
    "Compile the model with the same metrics on every rank."
)


class BroadcastGlobalVariablesCallback(_Callback):
    """Gives all ranks the root's weights and optimizer state, once: before the first batch, else right after it.

    Parameters
    ----------
    root_rank
        Whose they are.
    local_variables
        What each rank keeps for itself.

    Raises
    ------
    ValueError
        At the begin of the training: the ranks' variables differ, or the model cannot train as it is compiled.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local = {id(each): each for each in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """Leave this variable to each rank."""
        self._local[id(var)] = var

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Give what there is; ranks agree on whether all have it."""
        ready(self.model)
        if not self.broadcast_done and bool(ops.allreduce(array_of(int(self._built())), "keras.built", ops.Min)):
            self._give()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Give what the first batch has made."""
        if not self.broadcast_done:
            self._give()

    def _built(self) -> bool:
        model, optimizer = self.model, self.model.optimizer
        build = getattr(optimizer, "build", None)
        if not model.built or build is None:  # older optimizers make their variables in the first step
            return False
        if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            build(model.trainable_variables)
        return True

    def _give(self) -> None:
        everything = [*weights_of(self.model), *variables_of(self.model.optimizer)]
        broadcast_variables([each for each in everything if id(each) not in self._local], self.root_rank, "keras.begin")
        self.broadcast_done = True


class MetricAverageCallback(_Callback):
    """Average every metric over the ranks at the end of an epoch, so that all see, log and act on the same.

    A number becomes a float; a vector, of ``F1Score(average=None)`` for example, an array of its elements' averages.
    A metric that only some ranks have, as of a validation on rank 0 alone, is averaged over those, and all get it.
    Text, None and other values that are not numbers stay as each rank has them.

    Raises
    ------
    ValueError
        On every rank: a metric has different shapes on the ranks.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Check the model."""
        ready(self.model)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Average, in place."""
        logs = {} if logs is None else logs
        local = {name: array for name, value in logs.items() if (array := numbers_of(value)) is not None}
        ranks = ops.allgather_object(local, name="keras.metrics")
        for name in dict.fromkeys(name for metrics in ranks for name in metrics):
            if name in local or logs.get(name) is None:
                logs[name] = _mean(name, {rank: metrics[name] for rank, metrics in enumerate(ranks) if name in metrics})


def _mean(name: str, arrays: Mapping[int, Array]) -> Any:
    """Return the mean of a metric's arrays, by rank; a Python number for arrays without dimensions."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{array.shape} on rank {rank}" for rank, array in arrays.items())
        raise ValueError(METRIC_SHAPES_DIFFER.format(name=name, shapes=shapes))
    mean: Array = np.mean(list(arrays.values()), axis=0)
    return mean if mean.shape else mean.item()


class BestModelCheckpoint(_ModelCheckpoint):
    """Saves the best model only. Its ``filepath`` is assigned before the training begins.

    Raises
    ------
    ValueError
        At the begin of the training: ``filepath`` has not been assigned.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(
            filepath="best.weights.h5" if save_weights_only else "best.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath: Any = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Check that there is a place."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no file: callback.filepath = 'best.keras' before the training.")
        parent: Any = super()
        parent.on_train_begin(logs)
