"""Options of a DistributedOptimizer, and features of models and optimizers: each equals one process with all batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def trained() -> dict[str, Any]:
    """Return the weights of each option after two epochs, and those of one process with all batches."""
    import numpy as np
    from frameworks.keras import small as s

    from hvd_kernel.keras.flavour import BACKEND, IS_3

    hvd, k = s.hvd(), s.keras()
    x, y = s.data(batches=2)
    px, py = (s.part(hvd.rank(), hvd.size(), each) for each in (x, y))

    def fit(model: Any, optimizer: Any, mine: bool) -> Any:
        model.compile(optimizer, loss="mse", **s.how())
        data = (px, py) if mine else (x, y)
        model.fit(*data, batch_size=4 if mine else 8, epochs=2, shuffle=False, verbose=0)
        return s.weights(model)

    found: dict[str, Any] = {}

    def compare(way: str, made: Any, plain: Any, model: Any = s.model, **how: Any) -> None:
        theirs = model(0)
        given = {name: value(theirs) if callable(value) else value for name, value in how.items()}
        found[way] = [
            fit(theirs, hvd.DistributedOptimizer(made(), **given), mine=True),
            fit(model(0), plain(), mine=False),
        ]

    def sgd(**more: Any) -> Any:
        return lambda: k.optimizers.SGD(0.05, **more)

    compare("lists", sgd(), sgd(), groups=lambda model: [list(model.layers[1].trainable_variables)])
    compare("clipped", sgd(clipnorm=0.1), sgd(clipnorm=0.1))  # the average is, not what each rank has
    if IS_3:
        compare("accumulated", sgd(gradient_accumulation_steps=2), sgd(gradient_accumulation_steps=2))
        compare("decay", sgd(weight_decay=0.1), sgd(weight_decay=0.1))
    if hasattr(getattr(k.optimizers, "legacy", None), "Adam") and not IS_3:
        compare("legacy", lambda: k.optimizers.legacy.Adam(0.05), lambda: k.optimizers.legacy.Adam(0.05))
    if BACKEND == "tensorflow":
        compare("slices", sgd(), sgd(), _embedding)
        compare("slices made dense", sgd(), sgd(), _embedding, sparse_as_dense=True)
    return {way: [np.asarray(each).tolist() for each in pair] for way, pair in found.items()}


def _embedding(seed: int) -> Any:
    """Return a model whose first gradient is sparse: the inputs' integer parts are the rows it looks up."""
    from frameworks.keras import small as s

    k = s.keras()
    made = k.Sequential(
        [k.layers.Input((4,)), k.layers.Rescaling(2.0), k.layers.Embedding(2, 3), k.layers.Flatten(), k.layers.Dense(1)]
    )
    draw = np.random.default_rng(seed)
    made.set_weights([draw.random(weight.shape).astype(np.float32) for weight in made.get_weights()])
    return made


def test_every_option_trains_as_one_process_with_all_batches(keras_ranks: RankPool, flavour: str) -> None:
    first, second = keras_ranks.run(trained, timeout=200)
    ways = {"lists", "clipped"}
    ways |= {"legacy"} if flavour in {"tf-keras", "2.15", "2.13"} else {"accumulated", "decay"}
    ways |= set() if flavour.startswith(("torch", "jax")) else {"slices", "slices made dense"}
    assert set(first) == ways
    for way, (mine, alone) in first.items():
        assert mine == second[way][0], way
        np.testing.assert_allclose(mine, alone, rtol=1e-5, atol=1e-7, err_msg=way)


def check_compute_gradients(passes: int) -> list[Any]:
    """Check the attributes of Horovod's optimizer of Keras 2 in programs of that time, for an older and a newer optimizer."""
    import tensorflow as tf
    from frameworks.keras import small as s

    from hvd_kernel.keras.keras2 import REDUCED_TWICE

    hvd, k = s.hvd(), s.keras()
    mine = hvd.rank() + 1.0
    results: list[Any] = []
    for kind in (k.optimizers.SGD, k.optimizers.legacy.SGD):
        for op in (hvd.Average, hvd.Sum):
            w = tf.Variable([8.0, 8.0])
            optimizer = hvd.DistributedOptimizer(kind(1.0), op=op, backward_passes_per_step=passes)
            assert (optimizer._agg_helper is None) == (passes == 1)

            def computed(w: Any = w, optimizer: Any = optimizer) -> Any:
                with tf.GradientTape() as tape:
                    loss = mine * tf.reduce_sum(w)
                return optimizer._compute_gradients(loss, [w], tape=tape)

            for _ in range(passes):
                pairs = computed()
                optimizer.apply_gradients(pairs)
            results.append([pairs[0][0].numpy().tolist(), w.numpy().tolist()])
            if passes == 1:
                halves = [(grad / 2.0, variable) for grad, variable in computed()]
                try:
                    optimizer.apply_gradients(halves)
                except ValueError as error:
                    results.append(str(error) == REDUCED_TWICE)
                else:
                    results.append(w.numpy().tolist())
                optimizer.apply_gradients([(tf.constant([mine, mine]), w)])  # of a tape that is not ours: reduced
                results.append(w.numpy().tolist())
    return results


@pytest.mark.parametrize("flavour", ["tf-keras", "2.15", "2.13"])
def test_gradients_that_keras_2_computes_are_reduced_once(keras_ranks: RankPool) -> None:
    average = [[[1.5, 1.5], [6.5, 6.5]], [5.75, 5.75], [4.25, 4.25]]
    total = [[[3.0, 3.0], [5.0, 5.0]], True, [2.0, 2.0]]
    assert keras_ranks.run(check_compute_gradients, 1) == [(average + total) * 2] * 2
    passes = [[[3.0, 3.0], [5.0, 5.0]], [[6.0, 6.0], [2.0, 2.0]]]
    assert keras_ranks.run(check_compute_gradients, 2) == [passes * 2] * 2
