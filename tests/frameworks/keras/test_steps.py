"""Steps and samples that ``fit`` has taken, counted on every backend without the user's code: the panel's rates."""

from __future__ import annotations

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def fitted() -> list[list[int]]:
    """Steps and samples of two trainings, with a validation, and of one that fails in its second epoch."""
    import contextlib

    import numpy as np
    from frameworks.keras import small

    import hvd_kernel.keras as hvd
    from hvd_kernel.core import metrics
    from hvd_kernel.keras.flavour import keras

    hvd.init()
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", **small.how())
    x = np.ones((11, 3), np.float32)  # the last batch is smaller
    live = []

    class Looks(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_epoch_end(self, epoch: int, logs: object = None) -> None:
            live.append(metrics.snapshot().samples)
            self.model.evaluate(x, x[:, :2], verbose=0)

    class Fails(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            if batch == 2:
                raise RuntimeError("enough")

    def counted(batch: int, *callbacks: object) -> list[int]:
        before = metrics.snapshot()
        live.clear()
        validated = {"validation_data": (x[:5], x[:5, :2])}
        with contextlib.suppress(RuntimeError):
            model.fit(x, x[:, :2], batch, 2, 0, list(callbacks), **validated)
        after = metrics.snapshot()
        seen = [number - before.samples for number in live]
        return [after.step - before.step, after.samples - before.samples, *seen]

    return [counted(4, Looks()), counted(2, Looks()), counted(4, Fails())]


def test_each_batch_counts_as_a_step_with_its_samples(keras_ranks: RankPool) -> None:
    assert keras_ranks.run(fitted) == [[[6, 22, 11, 22], [12, 22, 11, 22], [2, 8]]] * 2


def uncounted() -> list[int]:
    """Run a training step of the user that keeps no loss of Keras, and a model with a plain optimizer."""
    import numpy as np
    from frameworks.keras import small

    import hvd_kernel.keras as hvd
    from hvd_kernel.core import metrics
    from hvd_kernel.keras.flavour import keras

    hvd.init()
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse", **small.how())
    before = metrics.snapshot()
    model.fit(np.ones((8, 3)), np.ones((8, 2)), verbose=0)
    after = metrics.snapshot()
    return [after.step - before.step, after.samples - before.samples]


def test_steps_of_plain_models_are_not_counted(keras_ranks: RankPool) -> None:
    assert keras_ranks.run(uncounted) == [[0, 0]] * 2
