"""One training of digits in torch, TensorFlow and Keras on three backends: the same losses and weights everywhere.

SGD in a fixed order, on two ranks with half of each batch, and in one process with all of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]
KERAS = {"keras on torch": "torch", "keras on jax": "jax", "keras on tensorflow": "tensorflow"}
# Units in the last place of float32 at 1. Each step rounds and later ones build on it; losses begin at 2.3.
LOSSES, WEIGHTS = 16, 32
UNIT = float(np.finfo(np.float32).eps)


def _data() -> Any:
    from frameworks.digits import data

    return data


def by_torch(alone: bool) -> dict[str, Any]:
    import torch

    import hvd_kernel.torch as hvd

    d = _data()
    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(64, d.HIDDEN), torch.nn.ReLU(), torch.nn.Linear(d.HIDDEN, 10))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), d.start(), strict=True):
            parameter.copy_(torch.from_numpy(value.T))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=d.RATE)
    if not alone:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    losses = []
    for images, labels in d.parts(*_place(hvd, alone)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(images)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return _result(losses, [each.detach().numpy().T for each in model.parameters()], alone)


def by_tensorflow(alone: bool) -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    d = _data()
    hvd.init()
    w1, b1, w2, b2 = weights = [tf.Variable(each) for each in d.start()]

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(images @ w1 + b1) @ w2 + b2
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        if not alone:
            tape = hvd.DistributedGradientTape(tape)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(d.RATE * gradient)
        return loss

    losses = [float(step(*map(tf.constant, part))) for part in d.parts(*_place(hvd, alone))]
    return _result(losses, [each.numpy() for each in weights], alone)


def by_keras(alone: bool) -> dict[str, Any]:
    import keras

    import hvd_kernel.keras as hvd

    d = _data()
    hvd.init()
    layers = [keras.Input((64,)), keras.layers.Dense(d.HIDDEN, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.set_weights(d.start())
    optimizer = keras.optimizers.SGD(d.RATE)
    if not alone:
        optimizer = hvd.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=keras.backend.backend() == "jax")
    losses = []
    for images, labels in d.parts(*_place(hvd, alone)):  # an epoch's loss is a mean: here of one step
        fitted = model.fit(images, labels, batch_size=len(images), shuffle=False, verbose=0)
        losses.append(fitted.history["loss"][0])
    return _result(losses, model.get_weights(), alone)


def _place(hvd: Any, alone: bool) -> tuple[int, int]:
    return (0, 1) if alone else (hvd.rank(), hvd.size())


def _result(losses: list[float], weights: list[Any], alone: bool) -> dict[str, Any]:
    """Return losses over the whole batches: the mean over ranks, whose parts have equal size."""
    import hvd_kernel.numpy as hvd

    means = losses if alone else hvd.allreduce(np.array(losses), op=hvd.Average).tolist()
    return {"losses": means, "weights": [float(each) for weight in weights for each in weight.ravel()]}


def trained(ranks: RankPool, check: Any) -> dict[str, Any]:
    """Train on two ranks, whose weights are equal to the bit, and in one process."""
    first, second = ranks.run(check, False)
    assert first == second
    return {"two ranks": first, "one process": ranks.run(check, True)[0]}


def test_losses_and_weights_are_the_same_everywhere() -> None:
    found = {}
    with RankPool(2) as ranks:
        found["torch"] = trained(ranks, by_torch)
    with Ranks(environment("tf221"), 2) as ranks:
        found["tensorflow"] = trained(ranks, by_tensorflow)
    for name, backend in KERAS.items():
        where = "tf221" if backend == "tensorflow" else "keras_torch_jax"
        with Ranks(environment(where), 2, KERAS_BACKEND=backend) as ranks:
            found[name] = trained(ranks, by_keras)
    losses, weights = _data().in_double_precision()
    flat = np.concatenate([each.ravel() for each in weights])
    assert losses[-1] < losses[0] / 4, "it learns: an equal loss says something"
    for name, ways in found.items():
        for way, result in ways.items():
            np.testing.assert_allclose(result["losses"], losses, 0, LOSSES * UNIT, err_msg=f"{name}, {way}")
            np.testing.assert_allclose(result["weights"], flat, 0, WEIGHTS * UNIT, err_msg=f"{name}, {way}")
