"""Keras callbacks: the same start, metrics and learning rates on all ranks. Horovod's names and signatures.

::

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),        # before callbacks that use metrics, such as EarlyStopping
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=3),
    ]
    model.fit(x, y, callbacks=callbacks, verbose=int(hvd.rank() == 0))
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np

from hvd_kernel.core import ops, session
from hvd_kernel.core.tensor import Array
from hvd_kernel.keras.flavour import (
    BACKEND,
    array_of,
    inner,
    keras,
    numbers_of,
    rate_of,
    set_rate,
    variables_of,
    weights_of,
)
from hvd_kernel.keras.functions import broadcast_variables
from hvd_kernel.keras.wrapping import check_model

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
Multiplier = Callable[[float], float]

METRIC_SHAPES_DIFFER = (
    "MetricAverageCallback: metric {name!r} has different shapes on the ranks and cannot be averaged: {shapes}. "
    "Compile the model with the same metrics on every rank."
)


class BroadcastGlobalVariablesCallback(_Callback):
    """Broadcasts the root's weights and optimizer state, once: before the first batch, or after it if not built yet.

    Parameters
    ----------
    root_rank
        The rank whose variables are sent.
    local_variables
        Variables that every rank keeps.

    Raises
    ------
    ValueError
        At the start of the training: the variables of the ranks differ, or the compiled model cannot train.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local = {id(variable): variable for variable in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable from the broadcast."""
        self._local[id(var)] = var

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Broadcast if the model and the optimizer are built on all ranks."""
        check_model(self.model)
        if not self.broadcast_done and bool(ops.allreduce(array_of(int(self._built())), "keras.built", ops.Min)):
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Broadcast after the first batch, which has built the model."""
        if not self.broadcast_done:
            self._broadcast()

    def _built(self) -> bool:
        model, optimizer = self.model, self.model.optimizer
        build = getattr(optimizer, "build", None)
        if not model.built or build is None:  # older optimizers create their variables in the first step
            return False
        if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            build(model.trainable_variables)
        return True

    def _broadcast(self) -> None:
        variables = [*weights_of(self.model), *variables_of(self.model.optimizer)]
        shared = [variable for variable in variables if id(variable) not in self._local]
        broadcast_variables(shared, self.root_rank, "keras.begin")
        self.broadcast_done = True


class MetricAverageCallback(_Callback):
    """Averages every metric over the ranks at the end of an epoch, so that all ranks see, log and act on the same.

    A number becomes a float; a vector, for example of ``F1Score(average=None)``, an array of its elements' averages.
    A metric that only some ranks have, as of a validation on rank 0 alone, is averaged over those ranks, and all ranks
    receive it. Text, None and other values that are not numbers stay unchanged on each rank.

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
        check_model(self.model)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Average the metrics, in place."""
        logs = {} if logs is None else logs
        local = {name: array for name, value in logs.items() if (array := numbers_of(value)) is not None}
        ranks = ops.allgather_object(local, name="keras.metrics")
        for name in dict.fromkeys(name for metrics in ranks for name in metrics):
            if name in local or logs.get(name) is None:
                logs[name] = _mean(name, {rank: metrics[name] for rank, metrics in enumerate(ranks) if name in metrics})


def _mean(name: str, arrays: Mapping[int, Array]) -> Any:
    """Return the mean of a metric over the ranks; a Python number for arrays without dimensions."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{array.shape} on rank {rank}" for rank, array in arrays.items())
        raise ValueError(METRIC_SHAPES_DIFFER.format(name=name, shapes=shapes))
    mean: Array = np.mean(list(arrays.values()), axis=0)
    return mean if mean.shape else mean.item()


class BestModelCheckpoint(_ModelCheckpoint):
    """Saves the best model only. ``filepath`` must be assigned before the training starts.

    Raises
    ------
    ValueError
        At the start of the training: ``filepath`` has not been assigned.
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
        """Check that ``filepath`` is assigned."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no file: callback.filepath = 'best.keras' before the training.")
        parent: Any = super()
        parent.on_train_begin(logs)


class LearningRateScheduleCallback(_Callback):
    """Sets the learning rate to ``initial_lr * multiplier(epoch)``.

    Parameters
    ----------
    initial_lr
        Learning rate of all ranks together, usually scaled by their number.
    multiplier
        A function of the epoch, or a number that is raised to the number of epochs after ``start_epoch``.
    start_epoch, end_epoch
        First epoch of the schedule, and first epoch after it; None: no end.
    staircase
        Change the rate at the start of epochs only; otherwise at every batch, with a fractional epoch.
    momentum_correction
        Scale SGD's momentum by new rate / old rate for the batch in which the rate changes.
    steps_per_epoch
        Needed if ``staircase`` is False and Keras does not know the number of steps.

    Raises
    ------
    ValueError
        ``initial_lr`` is missing; or at the start of the training, the number of batches is unknown.
    TypeError
        The optimizer's learning rate follows a schedule.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Multiplier,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier = _multiplier_of(multiplier, start_epoch)
        self.current_epoch = 0
        self._momentum: float | None = None

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Check the model, and determine the number of batches."""
        check_model(self.model)
        rate_of(self.model.optimizer)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Could not autodetect the number of steps per epoch. "
                    f"Please specify the steps_per_epoch parameter to the {type(self).__name__}()."
                )
        self._check_momentum()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Record the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Set the learning rate of the batch."""
        over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or over:
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Restore the momentum."""
        if self._momentum is not None:
            _assign_momentum(inner(self.model.optimizer), self._momentum)
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Log the learning rate."""
        if logs is not None:
            logs["lr"] = rate_of(self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = rate_of(optimizer), self.initial_lr * self.multiplier(epoch)
        set_rate(optimizer, new)
        momentum = _momentum_of(inner(optimizer))
        if self.momentum_correction and momentum and old:
            self._momentum = momentum
            _assign_momentum(inner(optimizer), momentum * new / old)

    def _check_momentum(self) -> None:
        """Warn if the training step is traced, as it keeps the momentum of the trace."""
        optimizer = inner(self.model.optimizer)
        traced = _is_traced(self.model) and not _is_variable(optimizer)
        if self.momentum_correction and _momentum_of(optimizer) and traced:
            self.momentum_correction = False
            warnings.warn(
                "momentum_correction has no effect here: a training step in a graph, or that JAX compiles, keeps the "
                "momentum that it was traced with. momentum_correction=False silences this; run_eagerly=True lets it "
                "work.",
                stacklevel=2,
            )


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr``, batch by batch, over the first epochs.

    Parameters
    ----------
    initial_lr
        Learning rate of all ranks together after the warm-up.
    warmup_epochs
        Number of epochs; their last batch has exactly ``initial_lr``.
    verbose
        1: rank 0 prints a line at the end of the warm-up.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.verbose = verbose
        super().__init__(
            initial_lr,
            warmup_of(session.size, warmup_epochs, lambda: self.steps_per_epoch or 1),
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Log the learning rate; print the end of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and self.end_epoch == epoch + 1 and session.rank() == 0:
            rate = rate_of(self.model.optimizer)
            sys.stdout.write(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.\n")


def _is_traced(model: Any) -> bool:
    if model.run_eagerly:
        return False
    return BACKEND == "tensorflow" or (BACKEND == "jax" and bool(model.jit_compile))


def _is_variable(optimizer: Any) -> bool:
    return "momentum" in getattr(optimizer, "_hyper", {})  # of a legacy optimizer of Keras 2


def _momentum_of(optimizer: Any) -> float | None:
    """Return SGD's momentum; None if it has none, or no number."""
    if _is_variable(optimizer):
        return float(keras.backend.get_value(optimizer.momentum))
    momentum = getattr(optimizer, "momentum", None)
    return float(momentum) if isinstance(momentum, int | float) else None


def _assign_momentum(optimizer: Any, momentum: float) -> None:
    if _is_variable(optimizer):
        keras.backend.set_value(optimizer.momentum, momentum)
    else:
        optimizer.momentum = momentum


def _multiplier_of(multiplier: float | Multiplier, start_epoch: int) -> Multiplier:
    """Return the function of the epoch, which may be fractional; a number is raised to the epochs since the first."""
    if callable(multiplier):
        return multiplier
    factor = multiplier
    return lambda epoch: factor ** (epoch - start_epoch)


def warmup_of(size: Callable[[], int], warmup_epochs: float, steps: Callable[[], int]) -> Multiplier:
    """Return a linear function from 1/size to 1 at the last batch of the warm-up; ``size`` is called for each batch.

    Example: 4 ranks, 5 epochs of 10 batches: the first batch has (0.1 * 3 / 5 + 1) / 4.
    """

    def multiplier(epoch: float) -> float:
        done = epoch + 1.0 / steps()
        return 1.0 / size() * (done * (size() - 1) / warmup_epochs + 1)

    return multiplier
