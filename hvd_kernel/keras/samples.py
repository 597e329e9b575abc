"""Instrumentation of ``keras.Model.fit``: checks of the model before training, and samples for the panel's samples/s.

Keras weights the mean loss of an epoch by the sizes of the batches. The sum of these weights is read on request, so a
step costs nothing. If the optimizer is a DistributedOptimizer, ``fit`` gets an additional callback.

Terms.
  loss   Keras's metric with the mean loss of an epoch; a custom training step may lack it
  meter  counter of one ``fit``; the training thread writes, the panel's thread reads, under one lock
"""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
import time
from typing import Any

from hvd_kernel.core import metrics
from hvd_kernel.keras.flavour import BACKEND, IS_3, array_of, keras
from hvd_kernel.keras.wrapping import WrappedOptimizer, check_model

_Callback: Any = keras.callbacks.Callback
_PERIOD_S = 0.2  # of the panel
_lock = threading.RLock()


class FitSampleMeter(_Callback):
    """Counts the samples of one ``fit``: Keras resets the loss in every epoch, and in every validation."""

    def __init__(self) -> None:
        super().__init__()
        self.trains: Any = None  # the model, within an epoch
        self._before = 0  # samples of completed epochs

    def samples(self) -> int:
        """Return the number of samples so far. May be called from any thread."""
        return self._before + _samples_in_loss(self.trains)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's interface
        """Start to read the loss."""
        self.trains = self.model

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's interface
        """Stop reading the loss, which the validation resets."""
        self.end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's interface
        """Stop reading the loss."""
        self.end()

    def end(self) -> None:
        """Add the samples of the epoch, and stop reading the loss."""
        with _lock:
            self._before, self.trains = self.samples(), None


class _JaxFitSampleMeter(FitSampleMeter):
    """Reads the loss on the training thread: with JAX, variables have no values until Keras synchronizes the model."""

    def __init__(self) -> None:
        super().__init__()
        self._read_at, self._in_epoch = 0.0, 0

    def samples(self) -> int:
        """Return the number of samples at the last reading. May be called from any thread."""
        return self._before + self._in_epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's interface
        """Read the loss, in the panel's period."""
        if time.monotonic() - self._read_at >= _PERIOD_S:
            self._read()

    def end(self) -> None:
        """Add the samples of the epoch, and stop reading the loss."""
        self._read()
        with _lock:
            self._before, self._in_epoch, self.trains = self.samples(), 0, None

    def _read(self) -> None:
        if self.trains is not None:
            self._read_at = time.monotonic()
            self._in_epoch = _samples_in_loss(self.model)


_meters: list[FitSampleMeter] = []
_ended = 0  # samples of completed calls of fit


@functools.cache
def instrument_fit() -> None:
    """Check and count every ``fit`` of a model with a DistributedOptimizer; once per process."""
    if BACKEND == "jax":
        importlib.import_module("hvd_kernel.keras.backends.on_jax").restore_failed_steps(_is_distributed)
    fit = keras.Model.fit
    parameters = inspect.signature(fit)

    @functools.wraps(fit)
    def counting(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        model = call.args[0]
        check_model(model)
        if not _is_distributed(model):
            return fit(*args, **kwargs)
        meter = _JaxFitSampleMeter() if BACKEND == "jax" else FitSampleMeter()
        call.arguments["callbacks"] = _with_meter(meter, model, call.arguments.get("callbacks"))
        _meters.append(meter)
        try:
            return fit(*call.args, **call.kwargs)
        finally:
            _end(meter)

    keras.Model.fit = counting
    metrics.count_by(_steps_and_samples)


def _is_distributed(model: Any) -> bool:
    return isinstance(getattr(model, "optimizer", None), WrappedOptimizer)


def _with_meter(meter: FitSampleMeter, model: Any, callbacks: Any) -> Any:
    """Return the callbacks after the meter: a callback may start a validation at the end of an epoch."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        meter.set_model(model)
        callbacks.callbacks.insert(0, meter)
        return callbacks
    listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return [meter, *(callback for callback in listed if callback is not None)]


def _end(meter: FitSampleMeter) -> None:
    global _ended  # noqa: PLW0603 - a counter of the process
    with _lock:
        meter.end()  # if the training has failed within an epoch
        _ended += meter.samples()
        _meters.remove(meter)


def _steps_and_samples() -> tuple[int, int]:
    with _lock:
        return 0, _ended + sum(meter.samples() for meter in _meters)


def _samples_in_loss(model: Any) -> int:
    """Return the samples in the loss of Keras's own training step; in Keras 2 the loss exists after the first step."""
    loss = getattr(model, "_loss_tracker", None)
    if not IS_3:
        of_outputs = getattr(getattr(model, "compiled_loss", None), "metrics", None)
        loss = of_outputs[0] if of_outputs else None
    return 0 if loss is None else int(array_of(loss.count))
