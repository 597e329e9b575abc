"""The guard against training apart follows plain Keras optimizers, of each flavour, and none that ranks share."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

from hvd_kernel.diagnosis.training_apart import warning_of
from hvd_kernel.protocol.messages import OptimizerSteps
from hvd_kernel.protocol.training_apart import nothing_exchanged

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.timeout(600)]

STEPS = 12  # of two epochs


def trained() -> dict[str, Any]:
    """Return the reports of this rank for each trainer, as of cells that have ended."""
    import numpy as np

    import hvd_kernel.keras as hvd
    from hvd_kernel.core import training_steps
    from hvd_kernel.keras.flavour import keras

    hvd.init()
    training_steps._run = 0  # earlier tests of these ranks have exchanged gradients
    rank = hvd.rank()
    x = np.random.default_rng(rank).random((STEPS * 2, 40), np.float32)
    y = x.sum(1, keepdims=True)
    models: dict[str, Any] = {}

    def model(optimizer: Any) -> Any:
        keras.utils.set_random_seed(1)
        made = keras.Sequential([keras.Input((40,)), keras.layers.Dense(40), keras.layers.Dense(1)])
        made.compile(optimizer, loss="mse", jit_compile=False)
        return made

    def fit(name: str, optimizer: Any = None, callbacks: Any = ()) -> Any:
        training_steps.begin_cell()
        made = models[name] = models.get(name) or model(optimizer)
        made.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[*callbacks])
        return training_steps.reports()

    def sgd() -> Any:
        return keras.optimizers.SGD(0.01)

    def begin() -> list[Any]:
        return [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]

    reports = {"plain": fit("plain", sgd()), "plain in a later cell": fit("plain")}
    training_steps.begin_cell()
    batches = model(sgd())
    for _ in range(STEPS):
        batches.train_on_batch(x, y)
    reports["by batch"] = training_steps.reports()
    reports["plain and broadcast"] = fit("broadcast", sgd(), begin())
    reports["distributed"] = fit("distributed", hvd.DistributedOptimizer(sgd()), begin())
    training_steps.begin_cell()
    models["plain"].evaluate(x, y, verbose=0)
    reports["evaluated"] = training_steps.reports()
    training_steps.begin_cell()
    for _ in range(STEPS):
        batches.train_on_batch(x, y)
        weights = batches.get_weights()
        batches.set_weights([hvd.allreduce(weight, name=f"w{n}") for n, weight in enumerate(weights)])
    reports["averaged by hand"] = training_steps.reports()
    return reports


APART = ("plain", "plain in a later cell", "plain and broadcast", "by batch")


def test_plain_optimizers_are_warned(keras_ranks: RankPool, flavour: str) -> None:
    found = keras_ranks.run(trained, timeout=300.0)
    warnings = {}
    for name in found[0]:
        reports = {rank: [OptimizerSteps(*row) for row in of_rank[name]] for rank, of_rank in enumerate(found)}
        warnings[name] = warning_of(reports, frozenset(reports))
    assert warnings == {name: nothing_exchanged("ranks 0-1", STEPS) if name in APART else "" for name in warnings}
