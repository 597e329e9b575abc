"""Callbacks and loading beyond plain training: schedules (F13), the best model, local variables, user classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def schedules() -> dict[str, Any]:
    """The rates of each batch of three epochs of two, in a step that Keras compiles or traces as it likes."""
    from frameworks.keras import small as s

    from hvd_kernel.keras.flavour import array_of

    hvd, k = s.hvd(), s.keras()
    x, y = s.data(batches=2)
    schedule = hvd.callbacks.LearningRateScheduleCallback

    class Seen(k.callbacks.Callback):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.rates: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.rates.append(float(array_of(self.model.optimizer.learning_rate)))

    def rates(*callbacks: Any, data: Any = (x, y), **how: Any) -> Any:
        model, seen = s.model(0), Seen()
        model.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.01)), loss="mse", **s.how())
        batch = {} if len(data) == 1 else {"batch_size": 8}
        history = model.fit(*data, **batch, epochs=3, verbose=0, callbacks=[*callbacks, seen], **how)
        return [seen.rates, history.history["lr"]]

    def told(act: Any) -> str:
        with pytest.raises((ValueError, TypeError)) as caught:
            act()
        return str(caught.value)

    def batches() -> Any:  # of unknown number
        for _ in range(20):
            yield x[:8], y[:8]

    follows = s.model(0)
    decaying = k.optimizers.SGD(k.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5))
    follows.compile(hvd.DistributedOptimizer(decaying), loss="mse", **s.how())
    smooth = {"staircase": False, "steps_per_epoch": 2}
    return {
        "staircase": rates(schedule(0.08, lambda epoch: 1.0 / (1 + epoch))),
        "constant": rates(schedule(0.08, 0.5)),
        "from the second": rates(schedule(0.08, 0.5, start_epoch=1)),
        "two": rates(schedule(0.08, 1.0, end_epoch=1), schedule(0.08, 0.1, start_epoch=1, end_epoch=2)),
        "smooth": rates(schedule(0.08, lambda epoch: 1 + epoch, staircase=False)),
        "steps are told": rates(
            schedule(0.08, lambda epoch: 1 + epoch, **smooth), data=(batches(),), steps_per_epoch=2
        ),
        "unknown": told(lambda: rates(schedule(0.08, lambda epoch: 1 + epoch, staircase=False), data=(batches(),))),
        "follows": told(lambda: follows.fit(x, y, verbose=0, callbacks=[schedule(0.08, 0.5)])),
    }


def test_schedules_equal_horovods_at_every_batch(keras_ranks: RankPool) -> None:
    want = {
        "staircase": [0.08, 0.08, 0.04, 0.04, 0.08 / 3, 0.08 / 3],
        "constant": [0.08, 0.08, 0.04, 0.04, 0.02, 0.02],
        "from the second": [0.01, 0.01, 0.08, 0.08, 0.04, 0.04],
        "two": [0.08, 0.08, 0.08, 0.08, 0.08, 0.08],  # 0.1 to the power of 0; after that as it was
        "smooth": [0.08, 0.12, 0.16, 0.2, 0.24, 0.28],
        "steps are told": [0.08, 0.12, 0.16, 0.2, 0.24, 0.28],
    }
    for found in keras_ranks.run(schedules, timeout=200):
        assert "Could not autodetect the number of steps per epoch" in found.pop("unknown")
        assert "learning rate follows ExponentialDecay" in found.pop("follows")
        assert set(found) == set(want)
        for name, (rates, logged) in found.items():
            np.testing.assert_allclose(rates, want[name], rtol=1e-6, err_msg=name)
            np.testing.assert_allclose(logged, want[name][1::2], rtol=1e-6, err_msg=name)


def the_rest(folder: str) -> dict[str, Any]:
    """Train with the best model, a local variable, the end of a warm-up, and an optimizer of the user."""
    import contextlib
    import io

    from frameworks.keras import small as s

    from hvd_kernel.keras.flavour import array_of
    from hvd_kernel.keras.wrapping import WrappedOptimizer

    hvd, k = s.hvd(), s.keras()
    x, y = s.data(batches=2)
    found: dict[str, Any] = {}

    def compiled(seed: int, optimizer: Any = None) -> Any:
        model = s.model(seed)
        made = hvd.DistributedOptimizer(k.optimizers.SGD(0.01) if optimizer is None else optimizer)
        model.compile(made, loss="mse", **s.how())
        return model

    best = hvd.callbacks.BestModelCheckpoint(monitor="loss", mode="min")
    with pytest.raises(ValueError, match="has no file") as caught:
        compiled(0).fit(x, y, verbose=0, callbacks=[best])
    kind = "h5" if k.__version__.startswith("2.13") else "keras"  # Keras 2.13's checkpoints cannot write its own format
    best.filepath = f"{folder}/best{hvd.rank()}.{kind}"
    model = compiled(0)
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[best])
    found["best"] = [best.save_best_only, s.weights(k.models.load_model(best.filepath)) == s.weights(model)]
    found["no file"] = str(caught.value)

    model = compiled(hvd.rank(), k.optimizers.SGD(0.0))
    own, mine = model.layers[0].trainable_variables[0], [array_of(each).tolist() for each in model.weights]
    given = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[own])
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[given])
    roots = s.model(0).get_weights()
    found["local"] = array_of(own).tolist() == mine[0]
    found["given"] = all(np.array_equal(a, b) for a, b in zip(model.get_weights()[1:], roots[1:], strict=True))

    said = io.StringIO()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.25, warmup_epochs=1, verbose=1)
    with contextlib.redirect_stdout(said):
        compiled(0).fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[warmup])
    found["said"] = said.getvalue().strip()

    class Mine(k.optimizers.SGD):  # type: ignore[misc,name-defined]
        pass

    class Layer(k.layers.Dense):  # type: ignore[misc,name-defined]
        pass

    model = k.Sequential([k.layers.Input((4,)), Layer(1)])
    model.compile(hvd.DistributedOptimizer(Mine(0.5)), loss="mse", **s.how())
    model.fit(x, y, batch_size=8, verbose=0)
    model.save(f"{folder}/mine{hvd.rank()}.keras")
    again = hvd.load_model(f"{folder}/mine{hvd.rank()}.keras", [Mine], {"Layer": Layer}, hvd.Compression.fp16)
    found["again"] = [
        type(again.optimizer).__name__,
        isinstance(again.optimizer, WrappedOptimizer),
        type(again.layers[0]).__name__,
        s.weights(again) == s.weights(model),
        int(array_of(again.optimizer.iterations)),
    ]
    return found


def test_best_model_local_variables_and_user_classes(keras_ranks: RankPool, tmp_path: Path) -> None:
    for rank, found in enumerate(keras_ranks.run(the_rest, str(tmp_path), timeout=200)):
        assert found == {
            "best": [True, True],
            "no file": "BestModelCheckpoint has no file: callback.filepath = 'best.keras' before the training.",
            "local": True,
            "given": True,
            "said": "" if rank else "Epoch 1: finished gradual learning rate warmup to 0.25.",
            "again": ["Mine", True, "Layer", True, 2],
        }


def check_metrics() -> list[Any]:
    from frameworks.keras import small as s

    hvd, k = s.hvd(), s.keras()
    rank = hvd.rank()
    x = np.full((4, 4), 1.0 + rank, np.float32)
    y = np.eye(2, dtype=np.float32)[[0, 1, 1, 1] if rank else [0, 0, 0, 1]]
    model = k.Sequential([k.layers.Input((4,)), k.layers.Dense(2, activation="softmax", kernel_initializer="zeros")])
    # All rows are classified as class 0: F1 is 6/7 and 2/5 for class 0 on the ranks, 0 for class 1.
    model.layers[0].set_weights([np.zeros((4, 2), np.float32), np.array([1.0, -1.0], np.float32)])
    model.compile(
        hvd.DistributedOptimizer(k.optimizers.SGD(0.0)),
        loss="categorical_crossentropy",
        metrics=[k.metrics.F1Score(average=None, name="f1")],
        **s.how(),
    )
    seen: dict[str, Any] = {}

    class Adds(k.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["note"], logs["nothing"], logs["steps"] = f"rank {rank}", None, 2 + rank
            logs["vector"] = np.array([1, 2 + rank])
            if rank == 0:
                logs["only"] = np.float32(5.0)

    class Keeps(k.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.update(logs)

    callbacks = [Adds(), hvd.callbacks.MetricAverageCallback(), Keeps()]
    history = model.fit(x, y, batch_size=4, verbose=0, callbacks=callbacks)
    assert len(history.history["f1"]) == 1
    kinds = {name: type(value).__name__ for name, value in seen.items()}
    seen = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in seen.items()}
    return [seen, kinds]


def test_vector_metrics_are_averaged_and_text_is_kept(keras_ranks: RankPool) -> None:
    losses = []
    for rank, (seen, kinds) in enumerate(keras_ranks.run(check_metrics)):
        losses.append(seen.pop("loss"))
        np.testing.assert_allclose(seen.pop("f1"), [(6 / 7 + 2 / 5) / 2, 0.0], rtol=1e-6)
        expected = {"note": f"rank {rank}", "nothing": None, "steps": 2.5, "vector": [1.0, 2.5], "only": 5.0}
        assert seen == expected
        assert (kinds["loss"], kinds["f1"], kinds["vector"], kinds["only"]) == ("float", "ndarray", "ndarray", "float")
    assert losses[0] == losses[1]


def check_shapes() -> str:
    from frameworks.keras import small as s

    from hvd_kernel.keras.callbacks import METRIC_SHAPES_DIFFER

    hvd = s.hvd()
    with pytest.raises(ValueError, match="metric") as caught:
        hvd.callbacks.MetricAverageCallback().on_epoch_end(0, {"f1": np.zeros(2 + hvd.rank())})
    shapes = "(2,) on rank 0, (3,) on rank 1"
    assert str(caught.value) == METRIC_SHAPES_DIFFER.format(name="f1", shapes=shapes)
    return shapes


def test_metrics_of_different_shapes_are_refused(keras_ranks: RankPool) -> None:
    assert len(keras_ranks.run(check_shapes)) == 2
