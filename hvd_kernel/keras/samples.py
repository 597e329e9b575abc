"""``fit`` of Keras, without the user's code: told in time what cannot work, and counted for the panel's samples/s.

Keras weighs the mean loss of an epoch by the sizes of the batches. The sum of those weights is read here when somebody
asks, so a step costs nothing. ``keras.Model.fit`` gets one callback more where the optimizer is a DistributedOptimizer.

Terms.
  loss   Keras's metric with the mean loss of an epoch; a training step of the user's own may do without
  meter  counts in one ``fit``; the thread that trains writes, the panel's reads, under one lock
"""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
import time
from typing import Any

from hvd_kernel.core import metrics
from hvd_kernel.keras.checks import ready
from hvd_kernel.keras.flavour import BACKEND, IS_3, array_of, keras
from hvd_kernel.keras.wrapping import WrappedOptimizer

_Callback: Any = keras.callbacks.Callback
_PERIOD_S = 0.2  # of the panel
_changing = threading.RLock()


class FitSampleMeter(_Callback):
    """Counts the samples of one ``fit``: Keras begins the loss anew in every epoch, and in every validation."""

    def __init__(self) -> None:
        super().__init__()
        self.trains: Any = None  # the model, within an epoch
        self._before = 0  # of the epochs that have ended

    def taken(self) -> int:
        """Return the samples so far. Any thread."""
        return self._before + _counted(self.trains)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's interface
        """Read from now on."""
        self.trains = self.model

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras's interface
        """Read no more: the validation has its own."""
        self.end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's interface
        """Read no more."""
        self.end()

    def end(self) -> None:
        """Keep what has been read, and read no more."""
        with _changing:
            self._before, self.trains = self.taken(), None


class _OfJax(FitSampleMeter):
    """While JAX trains no variable has its value, until somebody asks for the model: on the thread that trains."""

    def __init__(self) -> None:
        super().__init__()
        self._read_at, self._begun = 0.0, 0

    def taken(self) -> int:
        """Return the samples up to the last look. Any thread."""
        return self._before + self._begun

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras's interface
        """Look, as often as the panel does."""
        if time.monotonic() - self._read_at >= _PERIOD_S:
            self._look()

    def end(self) -> None:
        """Keep what has been read, and read no more."""
        self._look()
        with _changing:
            self._before, self._begun, self.trains = self.taken(), 0, None

    def _look(self) -> None:
        if self.trains is not None:
            self._read_at = time.monotonic()
            self._begun = _counted(self.model)


_meters: list[FitSampleMeter] = []
_ended = 0


@functools.cache
def attend_fit() -> None:
    """Have every ``fit`` of a model with an optimizer of ours checked and counted from now on."""
    if BACKEND == "jax":
        importlib.import_module("hvd_kernel.keras.backends.jax_step").keep_values(_is_ours)
    fit = keras.Model.fit
    parameters = inspect.signature(fit)

    @functools.wraps(fit)
    def counting(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs)
        model = given.args[0]
        ready(model)
        if not _is_ours(model):
            return fit(*args, **kwargs)
        meter = _OfJax() if BACKEND == "jax" else FitSampleMeter()
        given.arguments["callbacks"] = _with(meter, model, given.arguments.get("callbacks"))
        _meters.append(meter)
        try:
            return fit(*given.args, **given.kwargs)
        finally:
            _end(meter)

    keras.Model.fit = counting
    metrics.count_by(_taken)


def _is_ours(model: Any) -> bool:
    return isinstance(getattr(model, "optimizer", None), WrappedOptimizer)


def _with(meter: FitSampleMeter, model: Any, callbacks: Any) -> Any:
    """Return the callbacks, the meter first: others may begin a validation at the end of an epoch."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        meter.set_model(model)
        callbacks.callbacks.insert(0, meter)
        return callbacks
    several = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return [meter, *(each for each in several if each is not None)]


def _end(meter: FitSampleMeter) -> None:
    global _ended  # noqa: PLW0603 - a counter of the process
    with _changing:
        meter.end()  # a training that has failed within an epoch
        _ended += meter.taken()
        _meters.remove(meter)


def _taken() -> tuple[int, int]:
    with _changing:
        return 0, _ended + sum(meter.taken() for meter in _meters)


def _counted(model: Any) -> int:
    """Return the samples in the loss of Keras's own training step; Keras 2 has it from the first step on."""
    loss = getattr(model, "_loss_tracker", None)
    if not IS_3:
        of_outputs = getattr(getattr(model, "compiled_loss", None), "metrics", None)
        loss = of_outputs[0] if of_outputs else None
    return 0 if loss is None else int(array_of(loss.count))
