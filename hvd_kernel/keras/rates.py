"""Learning rate callbacks: schedules by epoch or batch, warm-up, and the momentum that goes with a change."""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

import sys
import warnings
from collections.abc import MutableMapping
from typing import Any

from hvd_kernel.core import session
from hvd_kernel.keras.checks import ready
from hvd_kernel.keras.flavour import BACKEND, inner, keras, rate_of, set_rate
from hvd_kernel.keras.schedules import Multiplier, multiplier_of, warmup_of

_Callback: Any = keras.callbacks.Callback
Logs = MutableMapping[str, Any] | None


class LearningRateScheduleCallback(_Callback):
    """Sets the learning rate to ``initial_lr * multiplier(epoch)``.

    Parameters
    ----------
    initial_lr
        For all ranks together: scaled by their number as a rule.
    multiplier
        A function of the epoch, or a number whose powers are meant, one for each epoch after ``start_epoch``.
    start_epoch, end_epoch
        From the first until before the second; None: for ever.
    staircase
        Change at the begin of epochs only; else at every batch, by an epoch with a fraction.
    momentum_correction
        Scale SGD's momentum by new rate / old rate for the batch in which the rate changes.
    steps_per_epoch
        Needed where ``staircase`` is False and Keras does not know it.

    Raises
    ------
    ValueError
        There is no initial_lr; or at the begin of the training, the number of batches is not known.
    TypeError
        The optimizer's learning rate follows a schedule of its own.
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
        self.multiplier = multiplier_of(multiplier, start_epoch)
        self.current_epoch = 0
        self._momentum: float | None = None

    def on_train_begin(self, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Check the model, and find the number of batches."""
        ready(self.model)
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
        """Take note of it."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Set the rate that this batch has."""
        over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or over:
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Give the momentum back."""
        if self._momentum is not None:
            _assign_momentum(inner(self.model.optimizer), self._momentum)
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:  # noqa: ARG002 - Keras's interface
        """Log the rate."""
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
        """Say that a step that has been traced keeps the momentum that it was traced with."""
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
        The one that all ranks together are to have.
    warmup_epochs
        The last batch of these has exactly ``initial_lr``.
    verbose
        1: rank 0 says when it is over.
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
        """Log the rate; say that it is over."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and self.end_epoch == epoch + 1 and session.rank() == 0:
            rate = rate_of(self.model.optimizer)
            sys.stdout.write(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.\n")


def _is_traced(model: Any) -> bool:
    if model.run_eagerly:
        return False
    return BACKEND == "tensorflow" or (BACKEND == "jax" and bool(model.jit_compile))


def _is_variable(optimizer: Any) -> bool:
    return "momentum" in getattr(optimizer, "_hyper", {})  # of an older optimizer of Keras 2


def _momentum_of(optimizer: Any) -> float | None:
    """Return SGD's momentum, if it has one that is a number."""
    if _is_variable(optimizer):
        return float(keras.backend.get_value(optimizer.momentum))
    momentum = getattr(optimizer, "momentum", None)
    return float(momentum) if isinstance(momentum, int | float) else None


def _assign_momentum(optimizer: Any, momentum: float) -> None:
    if _is_variable(optimizer):
        keras.backend.set_value(optimizer.momentum, momentum)
    else:
        optimizer.momentum = momentum
