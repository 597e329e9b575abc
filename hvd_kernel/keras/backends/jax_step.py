"""Keras's training step on JAX, such that a step that fails leaves the model as it was before it.

While Keras trains on JAX, the values of a model's variables are away in a state that goes from step to step. Keras
donates it: after a step that has failed, as where a rank has died, there would be neither the old values nor new ones.
Here it is not donated, and put back. That takes the memory of one more copy of the weights and the optimizer's state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from hvd_kernel.keras.flavour import keras

_NAMES = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


def keep_values(is_ours: Callable[[Any], bool]) -> None:
    """Have the models for which ``is_ours(model)`` train with such a step from now on."""
    make = keras.Model.make_train_function

    @functools.wraps(make)
    def making(model: Any, force: bool = False) -> None:
        if (model.train_function is not None and not force) or not is_ours(model) or _is_keras_own_business():
            make(model, force)
            return
        compiled = model.jit_compile and not model.run_eagerly
        step = jax.jit(model.train_step) if compiled else model.train_step
        model.train_function = _restoring(model, model._make_function(step))  # noqa: SLF001 - there is no public name

    keras.Model.make_train_function = making


def _restoring(model: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    def train(state: Any, iterator: Any) -> Any:
        try:
            return step(state, iterator)
        except BaseException:
            model._jax_state = dict(zip(_NAMES, state, strict=True))  # noqa: SLF001 - where Keras puts it back from
            model._jax_state_synced = False  # noqa: SLF001
            model.jax_state_sync()
            raise

    return train


def _is_keras_own_business() -> bool:
    """Tell whether one process has several devices, or Keras keeps its variables in flax."""
    return keras.distribution.distribution() is not None or keras.config.is_nnx_enabled()
