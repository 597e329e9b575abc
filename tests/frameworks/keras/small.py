"""Small Keras models and data that several tests of this folder train, on two ranks or in one process with all of it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def keras() -> Any:
    from hvd_kernel.keras.flavour import keras as chosen

    return chosen


def hvd() -> Any:
    import hvd_kernel.keras as api

    api.init()
    return api


def how() -> dict[str, Any]:
    """Return arguments of compile(): on JAX Keras's default, as one program, unless the flavour runs the step in Python."""
    from hvd_kernel.keras.flavour import BACKEND

    return {} if BACKEND == "jax" and "HVDTEST_STEP_IN_PYTHON" not in os.environ else {"jit_compile": False}


def data(batches: int = 4, whole: int = 8) -> tuple[Any, Any]:
    values = np.random.default_rng(7).random((batches * whole, 4), np.float32)
    return values, values.sum(1, keepdims=True)


def part(rank: int, size: int, values: Any, whole: int = 8) -> Any:
    """This rank's part of every batch: the ranks' parts together are the batches of one process."""
    each = whole // size
    return np.concatenate([values[at + rank * each : at + (rank + 1) * each] for at in range(0, len(values), whole)])


def model(seed: int) -> Any:
    k = keras()
    made = k.Sequential([k.layers.Input((4,)), k.layers.Dense(3), k.layers.Dense(1)])
    draw = np.random.default_rng(seed)
    made.set_weights([draw.random(weight.shape).astype(np.float32) for weight in made.get_weights()])
    return made


def weights(trained: Any) -> list[float]:
    return [float(value) for weight in trained.get_weights() for value in weight.ravel()]
