"""Training: trainer, optimizer and parameters on two ranks, against one process with the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

STEPS = 5
LR, MOMENTUM = 0.5, 0.5
DATA = np.arange(32, dtype=np.float64).reshape(8, 4) / 16.0
LABEL = DATA @ np.array([1.0, -2.0, 0.5, 3.0])


def expected() -> list[float]:
    """One process, all eight rows: the loss is the mean of half the squared errors."""
    weight, speed = np.full(4, 0.25), np.zeros(4)
    for _ in range(STEPS):
        grad = DATA.T @ (DATA @ weight - LABEL) / len(DATA)
        speed = MOMENTUM * speed - LR * grad / 8
        weight += speed
    return [float(each) for each in weight]


def trained(options: dict[str, Any]) -> list[Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd
    from hvd_kernel.core import metrics

    hvd.init()
    net = mx.gluon.nn.Dense(1, use_bias=False, dtype="float64")  # its shape is not known yet
    net.initialize(mx.init.Constant(0.25 if hvd.rank() == 0 else 9.0))
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    mine = slice(hvd.rank() * 4, hvd.rank() * 4 + 4)
    data, label = mx.nd.array(DATA[mine], dtype="float64"), mx.nd.array(LABEL[mine], dtype="float64")
    net(data)  # now it has a shape, and the root's values
    first = net.weight.data().asnumpy().tolist()
    trainer = hvd.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": LR / 8, "momentum": MOMENTUM}, **options
    )
    before = metrics.snapshot()
    for _ in range(STEPS):
        with mx.autograd.record():
            loss = mx.gluon.loss.L2Loss()(net(data), label)
        loss.backward()
        trainer.step(4)
    after = metrics.snapshot()
    return [first, net.weight.data().asnumpy()[0].tolist(), after.step - before.step, after.samples - before.samples]


@pytest.mark.parametrize("options", [{}, {"prefix": "mine"}], ids=["plain", "prefix"])
def test_a_trainer_equals_one_process_with_the_whole_batch(mx_ranks: RankPool, options: dict[str, Any]) -> None:
    one, other = mx_ranks.run(trained, options)
    assert one == other
    first, weight, steps, samples = one
    assert first == [[0.25] * 4]
    np.testing.assert_allclose(weight, expected(), rtol=1e-12)
    assert (steps, samples) == (STEPS, 4 * STEPS)


def two_trainers() -> list[float]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    nets, trainers = [], []
    for prefix in ("one", "two"):
        net = mx.gluon.nn.Dense(1, in_units=1, use_bias=False)
        net.initialize(mx.init.Constant(hvd.rank() + 1.0))
        hvd.broadcast_parameters(net.collect_params(), root_rank=1, prefix=prefix)
        nets.append(net)
        trainers.append(hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, prefix=prefix))
    for factor, net in enumerate(nets, 1):
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 1)) * factor * (hvd.rank() + 1)).sum()
        loss.backward()
    for trainer in trainers[:: -1 if hvd.rank() else 1]:  # each rank in another order
        trainer.step(1)
    return [float(net.weight.data().asscalar()) for net in nets]


def test_two_trainers_with_prefixes(mx_ranks: RankPool) -> None:
    assert mx_ranks.run(two_trainers) == [[0.5, -1.0]] * 2


def kept_and_edited() -> dict[str, Any]:
    """Gradients that the user copies, edits while they are reduced, or has of a parameter that is listed twice."""
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    mine = hvd.rank() + 1.0

    def parameter() -> Any:
        made = mx.gluon.Parameter("weight", shape=(2,))
        made.initialize(mx.init.Constant(1.0))
        return made

    def backward(one: Any, factor: float) -> None:
        with mx.autograd.record():
            loss = (one.data() * mine * factor).sum()
        loss.backward()

    def plain(arrays: Any) -> Any:
        return [array.asnumpy().tolist() for array in arrays]

    weight = parameter()
    trainer = hvd.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0})
    local, reduced = [], []
    for step in range(4):
        backward(weight, step)
        local.append(weight.grad().copy())
        trainer.step(1)
        reduced.append(weight.grad().copy())
    many = mx.nd.ones((100000,)) * mine
    hvd.allreduce_(many, name="in flight", op=hvd.Sum)
    many *= 2  # MXNet lets it wait for the sum
    twice = mx.nd.ones((2,)) * mine
    weights = [mx.nd.ones((2,)), mx.nd.ones((2,))]
    hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0)).update([0, 1], weights, [twice, twice], [None, None])
    listed = parameter()
    trainer = hvd.DistributedTrainer([listed, listed], "sgd", {"learning_rate": 1.0})
    backward(listed, 1.0)
    trainer.step(1, ignore_stale_grad=True)
    return {
        "local": plain(local),
        "reduced": plain(reduced),
        "edited": [float(many.min().asscalar()), float(many.max().asscalar())],
        "one gradient twice": plain([twice, *weights]),
        "listed twice": plain([listed.data(), listed.grad()]),
    }


def test_kept_and_edited_gradients_are_right(mx_ranks: RankPool) -> None:
    for rank, results in enumerate(mx_ranks.run(kept_and_edited)):
        assert results == {
            "local": [[(rank + 1.0) * step] * 2 for step in range(4)],
            "reduced": [[1.5 * step] * 2 for step in range(4)],
            "edited": [6.0, 6.0],
            "one gradient twice": [[1.5, 1.5], [-0.5, -0.5], [-0.5, -0.5]],
            "listed twice": [[-0.5, -0.5], [1.5, 1.5]],
        }


def wrapped() -> list[Any]:
    import pickle

    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    plain = mx.optimizer.SGD(learning_rate=0.5)
    optimizer = hvd.DistributedOptimizer(plain, gradient_predivide_factor=2.0, num_groups=2)
    optimizer.rescale_grad = 0.5
    optimizer.set_learning_rate(0.25)
    weights = [mx.nd.ones((2,)) for _ in range(3)]
    grads = [mx.nd.ones((2,)) * number * (hvd.rank() + 1) for number in range(1, 4)]
    for number, (weight, grad) in enumerate(zip(weights, grads, strict=True)):
        optimizer.update(number, weight, grad, optimizer.create_state(number, weight))
    again = pickle.loads(pickle.dumps(optimizer))
    kinds = [isinstance(again, hvd.DistributedOptimizer), isinstance(again._optimizer, mx.optimizer.SGD)]
    return [[w.asnumpy().tolist() for w in weights], plain.rescale_grad, plain.lr, again.lr, kinds]


def test_optimizer_in_a_custom_training_loop(mx_ranks: RankPool) -> None:
    values = [[1 - 0.25 * 0.5 * 1.5 * number] * 2 for number in (1, 2, 3)]
    assert mx_ranks.run(wrapped) == [[values, 0.5, 0.25, 0.25, [True, True]]] * 2


def module() -> list[float]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    symbol = mx.sym.LinearRegressionOutput(
        mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, no_bias=True, name="fc"), name="out"
    )
    made = mx.mod.Module(symbol, data_names=("data",), label_names=("out_label",))
    batches = mx.io.NDArrayIter(
        mx.nd.ones((2, 1)) * (hvd.rank() + 1), mx.nd.zeros((2, 1)), batch_size=2, label_name="out_label"
    )
    made.bind(data_shapes=batches.provide_data, label_shapes=batches.provide_label)
    made.init_params(mx.init.Constant(hvd.rank() + 1.0))
    arguments, _ = made.get_params()
    hvd.broadcast_parameters(arguments, root_rank=0)
    made.set_params(arguments, {})
    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.125, rescale_grad=0.5))
    made.init_optimizer(kvstore=None, optimizer=optimizer)
    batch = next(batches)
    made.forward_backward(batch)
    made.update()
    return made.get_params()[0]["fc_weight"].asnumpy().tolist()[0]


def test_a_module(mx_ranks: RankPool) -> None:
    """Two rows of x = rank + 1 each: half the sum of x * x * 1 is 1 and 4, their average 2.5."""
    assert mx_ranks.run(module) == [[1 - 0.125 * 2.5]] * 2


def refused() -> list[str]:
    import warnings

    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    said = []
    embedding = mx.gluon.nn.Embedding(4, 2, sparse_grad=True)
    embedding.initialize()
    for call in (
        lambda: hvd.DistributedTrainer(embedding.collect_params(), "sgd"),
        lambda: hvd.broadcast_parameters([1, 2]),
    ):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = hvd.DistributedTrainer(net.collect_params(), hvd.DistributedOptimizer(mx.optimizer.SGD()))
    return [*said, type(trainer.optimizer).__name__, str(caught[0].message)]


def test_trainer_refuses_or_unwraps_optimizers(mx_ranks: RankPool) -> None:
    for sparse, params, optimizer, warning in mx_ranks.run(refused):
        assert "sparse_grad=False" in sparse
        assert params == "invalid params of type: <class 'list'>"
        assert optimizer == "SGD"
        assert "We have unwrapped it for you" in warning
