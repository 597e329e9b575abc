"""The training step of Keras on JAX, compiled as one program with our operations in it; and the state after a failure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]
COMPILED = pytest.mark.parametrize("flavour", ["jax"])
BOTH = pytest.mark.parametrize("flavour", ["jax", "jax, step in Python"])

WAYS = ["plain", "sum", "predivided", "two groups", "lists", "fp16", "local"]


def _trained(way: str) -> dict[str, Any]:
    """Return the weights after two steps, and the operations of the program."""
    from frameworks.keras import small as s

    from hvd_kernel.jax.library import counters

    hvd, k = s.hvd(), s.keras()
    x, y = s.data(batches=2)
    px, py = (s.part(hvd.rank(), hvd.size(), each) for each in (x, y))
    model, alone = s.model(0), s.model(0)
    how: dict[str, Any] = {
        "plain": {},
        "sum": {"op": hvd.Sum},
        "predivided": {"gradient_predivide_factor": 2.0},
        "two groups": {"groups": 2},
        "lists": {"groups": [list(model.layers[1].trainable_variables)]},
        "fp16": {"compression": hvd.Compression.fp16},
        "local": {"local_layers": model.layers[0]},
    }[way]
    wrap = hvd.PartialDistributedOptimizer if way == "local" else hvd.DistributedOptimizer
    model.compile(wrap(k.optimizers.SGD(0.05), **how), loss="mse")
    before = counters()
    model.fit(px, py, batch_size=4, shuffle=False, verbose=0)
    model.train_on_batch(px[:4], py[:4])
    after = counters()
    alone.compile(k.optimizers.SGD(0.05 * (2.0 if way == "sum" else 1.0)), loss="mse")
    alone.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    alone.train_on_batch(x[:8], y[:8])
    return {
        "compiled": model.jit_compile,
        "counts": [after[name] - before[name] for name in ("calls", "steps")],
        "weights": s.weights(model),
        "last layer": [float(each) for weight in model.layers[1].get_weights() for each in weight.ravel()],
        "alone": s.weights(alone),
    }


@COMPILED
@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_step_reduces_in_its_program(keras_ranks: RankPool, way: str) -> None:
    first, second = keras_ranks.run(_trained, way)
    calls = {"two groups": 6, "lists": 9, "local": 6}.get(way, 3)  # in three steps; lists: two variables are alone
    for found in (first, second):
        assert found["compiled"] is True
        assert found["counts"] == [calls, 3]
    if way == "local":  # each rank's own first layer makes of the others what it likes
        assert first["weights"] != second["weights"]
        return
    assert first["weights"] == second["weights"]
    np.testing.assert_allclose(first["weights"], first["alone"], rtol=2e-3 if way == "fp16" else 1e-5)


def _local_gradients() -> list[list[float]]:
    """Return the results of a compiled update with one local variable and one that all share."""
    import jax
    from frameworks.keras import small as s

    hvd, k = s.hvd(), s.keras()
    a, b = (k.Variable(np.zeros(2, np.float32)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(k.optimizers.SGD(1.0))
    optimizer.register_local_var(a)
    optimizer.build([a, b])

    @jax.jit
    def step(grads: Any, values: Any, state: Any) -> Any:
        return optimizer.stateless_apply(state, grads, values)[0]

    grad = np.full(2, 2.0 * (hvd.rank() + 1), np.float32)
    moved = step([grad, grad], [a.value, b.value], [each.value for each in optimizer.variables])
    return [np.asarray(each).tolist() for each in moved]


@COMPILED
def test_local_gradient_is_kept_with_equal_weight(keras_ranks: RankPool) -> None:
    assert keras_ranks.run(_local_gradients) == [[[-1.0] * 2, [-3.0] * 2], [[-2.0] * 2, [-3.0] * 2]]


def _fails_and_goes_on() -> dict[str, Any]:
    """Train another model on rank 1 at first: both ranks raise and keep their weights, and equal models continue."""
    from frameworks.keras import small as s

    hvd, k = s.hvd(), s.keras()
    x, y = s.data(batches=2)
    wide = k.Sequential([k.layers.Input((4,)), k.layers.Dense(1 + 4 * hvd.rank()), k.layers.Dense(1)])
    models = [s.model(0), wide]
    for each in models:
        each.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.05, momentum=0.5)), loss="mse", **s.how())
    same, differs = models
    found: dict[str, Any] = {"told": [], "kept": []}
    same.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for model, attempt in (
        (same, lambda: same.fit(x, y, batch_size=8, shuffle=False, verbose=0)),
        (differs, lambda: differs.fit(x, y, batch_size=8, verbose=0)),
        (differs, lambda: differs.train_on_batch(x[:8], y[:8])),
    ):
        before, steps = s.weights(model), int(k.ops.convert_to_numpy(model.optimizer.iterations))
        if model is same:
            attempt()
            continue
        with pytest.raises(Exception, match="Mismatch") as caught:
            attempt()
        found["told"].append(str(caught.value))
        found["kept"].append(
            [s.weights(model) == before, int(k.ops.convert_to_numpy(model.optimizer.iterations)) == steps]
        )
    same.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return found | {"weights": s.weights(same)}


@BOTH
def test_failed_step_leaves_the_model_unchanged(keras_ranks: RankPool) -> None:
    first, second = keras_ranks.run(_fails_and_goes_on)
    for found in (first, second):
        assert len(found["told"]) == 2
        assert found["kept"] == [[True, True]] * 2
    assert first["weights"] == second["weights"]


def _recovers() -> dict[str, Any]:
    """Rank 1 fails once in a callback, while rank 0 waits in its program: both go back to the last commit."""
    from frameworks.keras import small as s

    hvd, k = s.hvd(), s.keras()
    x, y = s.data(batches=4)
    model, failures, begun = s.model(0), [1], []
    model.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.05, momentum=0.5)), loss="mse", **s.how())
    state = hvd.elastic.KerasState(model, epoch=0)

    class Fails(k.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if hvd.rank() == 1 and state.epoch == 1 and batch == 2 and failures:
                failures.pop()
                raise hvd.elastic.HorovodInternalError("a fault")

    @hvd.elastic.run
    def train(state: Any) -> list[float]:
        begun.append(state.epoch)
        while state.epoch < 3:
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[Fails()])
            state.epoch += 1
            state.commit()
        return s.weights(model)

    got = train(state)
    plain = s.model(0)
    plain.compile(k.optimizers.SGD(0.05, momentum=0.5), loss="mse", **s.how())
    for _ in range(3):
        plain.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return {"begun": begun, "weights": got, "plain": s.weights(plain)}


@BOTH
def test_elastic_training_resumes_from_its_commit(keras_ranks: RankPool) -> None:
    first, second = keras_ranks.run(_recovers, timeout=120)
    assert first == second
    assert first["begun"] == [0, 1]
    np.testing.assert_allclose(first["weights"], first["plain"], rtol=1e-5)
