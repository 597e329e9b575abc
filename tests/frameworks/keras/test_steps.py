"""Steps that ``fit`` has taken, counted on every backend without the user's code: the panel's steps/s."""

from __future__ import annotations

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def fitted() -> list[int]:
    import numpy as np

    import hvd_kernel.keras as hvd
    from hvd_kernel.core import metrics
    from hvd_kernel.keras.flavour import keras

    hvd.init()
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", **hvd_compile())
    x = np.ones((12, 3), np.float32)
    steps = []
    for batch in (4, 2):
        before = metrics.snapshot().step
        model.fit(x, x[:, :2], batch_size=batch, epochs=2, verbose=0)
        steps.append(metrics.snapshot().step - before)
    return steps


def hvd_compile() -> dict[str, bool]:
    from hvd_kernel.keras.flavour import keras

    return {"jit_compile": False} if keras.__version__.startswith("3") else {}


def test_each_batch_is_a_step(keras_ranks: RankPool) -> None:
    assert keras_ranks.run(fitted) == [[6, 12], [6, 12]]
