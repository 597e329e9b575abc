"""Keras trains on two ranks as one process does with the whole batch: on every backend, and in Keras 2. F8, F11 to F15."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frameworks.conftest import KERAS, KERAS_3
from hvdtest.environments import environment, output_of
from hvdtest.launch import RankPool

pytestmark = pytest.mark.nightly
keras_3 = pytest.mark.parametrize("flavour", KERAS_3)


def _small() -> Any:
    from frameworks.keras import small

    return small


def check_equals_one_process() -> dict[str, Any]:
    s = _small()
    hvd, k = s.hvd(), s.keras()
    x, y = s.data()
    mine, alone, seen = s.model(hvd.rank()), s.model(0), []
    optimizer = hvd.DistributedOptimizer(k.optimizers.SGD(0.1, momentum=0.5))
    mine.compile(optimizer, loss="mse", **s.how())
    alone.compile(k.optimizers.SGD(0.1, momentum=0.5), loss="mse", **s.how())

    class Seen(k.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(s.weights(self.model))

    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), Seen()]
    px, py = (s.part(hvd.rank(), hvd.size(), each) for each in (x, y))
    history = mine.fit(px, py, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    expected = alone.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return {
        "epochs": seen,
        "alone": s.weights(alone),
        "losses": history.history["loss"],
        "losses alone": expected.history["loss"],
        "plain class": optimizer.__class__ is not type(optimizer) and type(optimizer).__name__ == "SGD",
    }


def test_ranks_equal_each_other_and_one_process_after_each_epoch(keras_ranks: RankPool) -> None:
    first, second = keras_ranks.run(check_equals_one_process)
    assert first == second
    assert len(first["epochs"]) == 3
    assert first["plain class"]
    np.testing.assert_allclose(first["epochs"][-1], first["alone"], rtol=1e-5)
    np.testing.assert_allclose(first["losses"], first["losses alone"], rtol=1e-5)


def check_saves(folder: str) -> list[Any]:
    s = _small()
    hvd, k = s.hvd(), s.keras()
    x, y = s.data()
    mine = s.model(0)
    mine.compile(hvd.DistributedOptimizer(k.optimizers.Adam(0.01)), loss="mse", **s.how())
    mine.fit(x, y, batch_size=8, verbose=0)
    path = f"{folder}/{hvd.rank()}.keras"
    mine.save(path)
    again = hvd.load_model(path)
    state = [np.asarray(value).tolist() for value in map(_array, _variables(again.optimizer))]
    before = [np.asarray(value).tolist() for value in map(_array, _variables(mine.optimizer))]
    from hvd_kernel.keras.wrapping import WrappedOptimizer

    return [isinstance(again.optimizer, WrappedOptimizer), int(_array(again.optimizer.iterations)), state == before]


def _array(value: Any) -> Any:
    from hvd_kernel.keras.flavour import array_of

    return array_of(value)


def _variables(optimizer: Any) -> Any:
    from hvd_kernel.keras.flavour import variables_of

    return variables_of(optimizer)


LOAD = """
import json, os, sys
name = "tf_keras" if os.environ.get("TF_USE_LEGACY_KERAS") else "keras"
keras = __import__(name)
model = keras.models.load_model(sys.argv[1])
optimizer = model.optimizer
print(json.dumps([type(optimizer).__name__, int(optimizer.iterations), "hvd_kernel" in sys.modules]))
"""


def test_saved_models_load_with_and_without_hvd_kernel(keras_ranks: RankPool, flavour: str, tmp_path: Path) -> None:
    assert keras_ranks.run(check_saves, str(tmp_path)) == [[True, 4, True]] * 2
    name, variables = KERAS[flavour]
    answer = output_of(environment(name), LOAD, str(tmp_path / "0.keras"), **variables)
    assert json.loads(answer.splitlines()[-1]) == ["Adam", 4, False]


def check_resumes(folder: str) -> list[Any]:
    """Resume: rank 0 has loaded its saved model with the optimizer; the other one has created its model again."""
    s = _small()
    hvd, k = s.hvd(), s.keras()
    x, y = s.data()
    path = f"{folder}/resumed.keras"
    if hvd.rank() == 0:
        saved = s.model(0)
        saved.compile(k.optimizers.SGD(0.05, momentum=0.5), loss="mse", **s.how())
        saved.fit(x, y, batch_size=8, verbose=0)
        saved.save(path)
        mine = hvd.load_model(path)
    else:
        mine = s.model(7)
        mine.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.05, momentum=0.5)), loss="mse", **s.how())
    mine.fit(x, y, batch_size=8, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    return [int(_array(mine.optimizer.iterations)), s.weights(mine)]


def test_training_resumes_from_a_model_loaded_on_one_rank(keras_ranks: RankPool, tmp_path: Path) -> None:
    first, second = keras_ranks.run(check_resumes, str(tmp_path))
    assert first == second
    assert first[0] == 8


def check_warmup() -> list[float]:
    from hvd_kernel.keras.callbacks import warmup_of

    multiplier = warmup_of(lambda: 4, 5, lambda: 10)
    return [0.4 * multiplier(epoch + batch / 10) for epoch in range(5) for batch in range(10)]


def check_momentum() -> list[Any]:
    """Rate and momentum within each batch, and the momentum after it."""
    s = _small()
    hvd, k = s.hvd(), s.keras()
    x, y = s.data()
    mine, seen = s.model(0), []
    mine.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.4, momentum=0.5)), loss="mse", run_eagerly=True)

    class Seen(k.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append([float(_array(self.model.optimizer.learning_rate)), self.model.optimizer.momentum])

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen[-1].append(self.model.optimizer.momentum)

    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=1)
    history = mine.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[warmup, Seen()])
    return [seen, history.history["lr"]]


def test_warmup_and_momentum_equal_horovods_exactly(keras_ranks: RankPool) -> None:
    for rates in keras_ranks.run(check_warmup):
        assert rates[0] == pytest.approx(0.106, rel=1e-12)
        assert rates[-1] == pytest.approx(0.4, rel=1e-12)
    for seen, logged in keras_ranks.run(check_momentum):
        rates = [0.25, 0.3, 0.35, 0.4]  # 1/2 * (batch + 1) / 4 + 1/2, of 0.4
        old = [0.4, *rates[:-1]]
        momenta = [0.5 * new / before for new, before in zip(rates, old, strict=True)]
        np.testing.assert_allclose([row[0] for row in seen], rates + [0.4] * 4, rtol=1e-6)
        np.testing.assert_allclose([row[1] for row in seen], momenta + [0.5] * 4, rtol=1e-6)
        assert [row[2] for row in seen] == [0.5] * 8
        np.testing.assert_allclose(logged, [0.4, 0.4], rtol=1e-6)


def check_warmup_in_a_traced_step() -> list[Any]:
    """Return the rates, the warnings, and whether the weights equal those of a step in Python with those rates."""
    import warnings

    s = _small()
    hvd, k = s.hvd(), s.keras()
    x, y = s.data()
    rates: list[float] = []

    class Seen(k.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            rates.append(float(_array(self.model.optimizer.learning_rate)))

    def fitted(correction: bool, **how: Any) -> list[float]:
        mine = s.model(0)
        mine.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.04, momentum=0.5)), loss="mse", **how)
        warmup = hvd.callbacks.LearningRateWarmupCallback(0.04, warmup_epochs=1, momentum_correction=correction)
        mine.fit(x, y, batch_size=8, shuffle=False, epochs=2, verbose=0, callbacks=[warmup, Seen()])
        return s.weights(mine)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = fitted(correction=True, **s.how())
    said = [str(each.message) for each in caught if "momentum_correction" in str(each.message)]
    return [rates[:8], said, traced, fitted(correction=False, run_eagerly=True)]


@pytest.mark.parametrize("flavour", ["jax", "tensorflow"])
def test_the_rate_of_a_batch_reaches_a_traced_step(keras_ranks: RankPool) -> None:
    for rates, said_there, traced, in_python in keras_ranks.run(check_warmup_in_a_traced_step):
        np.testing.assert_allclose(rates, [0.025, 0.03, 0.035, 0.04] + [0.04] * 4, rtol=1e-6)
        np.testing.assert_allclose(traced, in_python, rtol=1e-5)
        assert len(said_there) == 1
        assert "momentum_correction has no effect here" in said_there[0]


def check_stops() -> list[Any]:
    s = _small()
    hvd, k = s.hvd(), s.keras()
    x, y = s.data()
    mine = s.model(0)
    mine.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.0)), loss="mse", **s.how())

    class Says(k.callbacks.Callback):  # type: ignore[misc,name-defined]
        """A loss of the validation that gets worse on rank 1 from the second epoch, better on rank 0 until the fourth."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_loss"] = [[8.0, 6.0, 4.0, 9.0], [1.0, 2.0, 3.0, 9.0]][hvd.rank()][epoch]
            if hvd.rank() == 0:
                logs["only"] = 5.0

    stop = k.callbacks.EarlyStopping("val_loss", patience=0)
    callbacks = [Says(), hvd.callbacks.MetricAverageCallback(), stop]
    history = mine.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=callbacks)
    return [history.history["val_loss"], history.history["only"], stop.stopped_epoch]


def test_metrics_and_early_stopping_agree(keras_ranks: RankPool) -> None:
    assert keras_ranks.run(check_stops) == [[[4.5, 4.0, 3.5, 9.0], [5.0] * 4, 3]] * 2


def check_infinite() -> list[Any]:
    s = _small()
    hvd, k = s.hvd(), s.keras()
    k.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        mine = s.model(0)
        mine.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.01)), loss="mse", **s.how())
        x, y = s.data(batches=1)
        before = s.weights(mine)
        bad = x * np.float32(np.inf if hvd.rank() == 1 else 1)
        mine.fit(bad, y, batch_size=8, verbose=0)
        skipped = s.weights(mine) == before
        scale = float(_array(mine.optimizer.dynamic_scale))
        mine.fit(x, y, batch_size=8, verbose=0)
        return [skipped, scale, s.weights(mine) != before, s.weights(mine)]
    finally:
        k.mixed_precision.set_dtype_policy("float32")


@keras_3
def test_an_infinite_gradient_makes_all_ranks_skip_the_step(keras_ranks: RankPool) -> None:
    first, second = keras_ranks.run(check_infinite)
    assert first == second
    assert first[:3] == [True, 2.0**14, True]


def check_refusals() -> list[str]:
    s = _small()
    hvd, k = s.hvd(), s.keras()
    x, y = s.data(batches=1)
    scaler = k.mixed_precision.LossScaleOptimizer
    wrapped = hvd.DistributedOptimizer(k.optimizers.SGD(0.01))
    cases: list[Any] = [
        lambda: hvd.DistributedOptimizer(wrapped),
        lambda: hvd.DistributedOptimizer("sgd"),
        lambda: hvd.DistributedOptimizer(k.optimizers.SGD(0.01), op=hvd.Max),
        lambda: hvd.PartialDistributedOptimizer(k.optimizers.SGD(0.01), local_layers=[1]),
        lambda: hvd.callbacks.LearningRateScheduleCallback(None, 1.0),
        lambda: _fit(scaler(hvd.DistributedOptimizer(k.optimizers.SGD(0.01))), x, y, **s.how()),
    ]
    if k.backend.backend() == "tensorflow":
        cases.append(lambda: _fit(hvd.DistributedOptimizer(k.optimizers.SGD(0.01)), x, y, jit_compile=True))
    said = []
    for case in cases:
        with pytest.raises((TypeError, ValueError)) as caught:
            case()
        said.append(str(caught.value))
    return said


def _fit(optimizer: Any, x: Any, y: Any, **how: Any) -> None:
    s = _small()
    mine = s.model(0)
    mine.compile(optimizer, loss="mse", **how)
    mine.fit(x, y, verbose=0)


REFUSED = (
    "is a DistributedOptimizer already",
    "takes an optimizer of keras 3",
    "only supports Average and Sum",
    "All local layers must be",
    "`initial_lr` is required",
    "LossScaleOptimizer with the DistributedOptimizer",
    "model.compile(..., jit_compile=False)",
)


@keras_3
def test_unsupported_settings_are_refused_before_training(keras_ranks: RankPool) -> None:
    for said_there in keras_ranks.run(check_refusals):
        for sentence, expected in zip(said_there, REFUSED, strict=False):
            assert expected in sentence


def check_auto() -> list[Any]:
    """Run TensorFlow as on a machine with a GPU: its default would compile the step."""
    import tensorflow as tf

    s = _small()
    hvd, k = s.hvd(), s.keras()
    x, y = s.data(batches=1)
    said, devices = [], tf.config.list_physical_devices
    tf.config.list_physical_devices = lambda *kind: [*devices(*kind), tf.config.PhysicalDevice("/gpu:0", "GPU")]
    try:
        for callbacks in ([hvd.callbacks.MetricAverageCallback()], []):
            mine = s.model(0)
            mine.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.01)), loss="mse")  # jit_compile="auto"
            with pytest.raises(ValueError, match="HvdAllreduce") as caught:
                mine.fit(x, y, verbose=0, callbacks=callbacks)
            said.append(str(caught.value))
    finally:
        tf.config.list_physical_devices = devices
    return [*said, int(_array(mine.optimizer.iterations))]


@pytest.mark.parametrize("flavour", ["tensorflow"])
def test_default_compilation_is_refused_before_a_step(keras_ranks: RankPool) -> None:
    """With a callback of ours and without one."""
    told = (
        "XLA would compile this training step as a whole, and it cannot compile the operation HvdAllreduce of the "
        "DistributedOptimizer: model.compile(..., jit_compile=False)."
    )
    assert keras_ranks.run(check_auto) == [[told, told, 0]] * 2
