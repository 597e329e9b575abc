"""Order and time: operations that MXNet begins when their tensors are ready, on one thread, in another order per rank."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def opposite_starts() -> list[float]:
    """Each rank begins with another operation: blocking MXNet's only thread would deadlock."""
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    one, two = mx.nd.ones((4,)), mx.nd.ones((4,)) * 2
    for name, tensor in [("one", one), ("two", two)][:: -1 if hvd.rank() else 1]:
        hvd.allreduce_(tensor, op=hvd.Sum, name=name)
    return [float(one[0].asscalar()), float(two[0].asscalar())]


def test_operations_started_in_opposite_orders_complete(mx_ranks: RankPool) -> None:
    assert mx_ranks.run(opposite_starts) == [[2.0, 4.0]] * 2


def what_waits_for_another_rank() -> list[Any]:
    """An operation that waits for another rank holds no thread of MXNet: independent operations continue."""
    import mxnet as mx

    import hvd_kernel.mxnet as hvd
    from hvd_kernel.mxnet.library import counters

    hvd.init()
    before = counters()
    late, product = None, None
    if hvd.rank() == 0:
        late = hvd.allreduce(mx.nd.ones((4,)), op=hvd.Sum, name="late")
        product = float(mx.nd.dot(mx.nd.ones((50, 50)), mx.nd.ones((50, 50))).sum().asscalar())
        ended = counters()["ended"] - before["ended"]
        hvd.broadcast_object("go on", root_rank=0, name="gate")
    else:
        ended = 0
        hvd.broadcast_object(None, root_rank=0, name="gate")
        late = hvd.allreduce(mx.nd.ones((4,)), op=hvd.Sum, name="late")
    value = late.asnumpy().tolist()
    after = counters()
    return [ended, product, value, [after[name] - before[name] for name in ("pushed", "run", "ended")]]


def test_waiting_operation_blocks_no_other(mx_ranks: RankPool) -> None:
    once = [1, 1, 1]
    assert mx_ranks.run(what_waits_for_another_rank) == [
        [0, 125000.0, [2.0] * 4, once],
        [0, None, [2.0] * 4, once],
    ]


def readers_and_writers() -> list[float]:
    """No wait in between: each step sees the writes of the previous one."""
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    x = mx.nd.zeros((1000,))
    for _ in range(20):
        x += hvd.rank() + 1
        hvd.allreduce_(x, op=hvd.Average, name="x")
        x *= 2
    copy = hvd.allreduce(x, op=hvd.Sum)
    x[:] = -1  # after it was read
    return [float(copy.min().asscalar()), float(copy.max().asscalar()), float(x.sum().asscalar())]


def test_each_step_sees_the_writes_of_the_previous_one(mx_ranks: RankPool) -> None:
    value = 0.0
    for _ in range(20):
        value = (value + 1.5) * 2
    assert mx_ranks.run(readers_and_writers) == [[2 * value, 2 * value, -1000.0]] * 2


def one_name() -> list[list[float]]:
    """The n-th calls of one name match, also if the second tensor is ready before the first one."""
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    slow = mx.nd.dot(mx.nd.ones((600, 600)), mx.nd.ones((600, 600)))[0, :2] if hvd.rank() else mx.nd.ones((2,)) * 600
    quick = mx.nd.ones((3,))
    made = [hvd.allreduce(each, op=hvd.Sum, name="same") for each in (slow, quick, slow)]
    return [each.asnumpy().tolist() for each in made[::-1]][::-1]


def test_calls_with_one_name_match_in_order(mx_ranks: RankPool) -> None:
    assert mx_ranks.run(one_name) == [[[1200.0] * 2, [2.0] * 3, [1200.0] * 2]] * 2


def forgotten_inputs() -> float:
    """Nothing of Python's holds the tensor any more when MXNet lets the operation begin."""
    import mxnet as mx

    import hvd_kernel.mxnet as hvd

    hvd.init()
    made = [hvd.allreduce(mx.nd.ones((10000,)) * number, op=hvd.Sum) for number in range(50)]
    return float(sum(each.sum() for each in made).asscalar())


def test_inputs_are_held_until_the_end(mx_ranks: RankPool) -> None:
    assert mx_ranks.run(forgotten_inputs) == [2 * 10000 * sum(range(50))] * 2


def layouts_of_onednn() -> list[bool]:
    """oneDNN keeps results, and after a forward pass weights, in an order of its own."""
    import mxnet as mx
    import numpy as np

    import hvd_kernel.mxnet as hvd

    hvd.init()
    net = mx.gluon.nn.Conv2D(16, 3, in_channels=16)
    net.initialize(mx.init.Constant(hvd.rank() + 1.0))
    net.hybridize()
    weight, values = net.weight.data(), mx.nd.arange(16 * 16 * 8 * 8).reshape((16, 16, 8, 8))
    net.weight.set_data(values[:, :, :3, :3] + hvd.rank())
    image = mx.nd.arange(2 * 16 * 8 * 8).reshape((2, 16, 8, 8)) * (hvd.rank() + 1)
    before = weight.asnumpy()
    result = net(image)
    result.wait_to_read()  # now both lie in oneDNN's order
    summed, gathered = hvd.allreduce(result, op=hvd.Sum), hvd.allgather(net(image))
    hvd.broadcast_(weight, root_rank=0)
    mine = net.weight.data().asnumpy()
    parts = np.split(gathered.asnumpy(), 2)
    return [
        bool(np.array_equal(summed.asnumpy(), parts[0] + parts[1])),
        bool(np.array_equal(mine, before - hvd.rank())),
        bool(np.array_equal(parts[hvd.rank()], result.asnumpy())),
    ]


def test_layouts_of_onednn_are_read_row_by_row(mx_ranks: RankPool) -> None:
    assert mx_ranks.run(layouts_of_onednn) == [[True, True, True]] * 2


def failed_before() -> list[Any]:
    """A tensor whose own computation has failed is not sent: this rank gets that failure."""
    import mxnet as mx

    import hvd_kernel.mxnet as hvd
    from hvd_kernel.mxnet.library import counters

    hvd.init()
    before = counters()
    bad = mx.nd.random.normal(0, -1, shape=(2, 2))  # MXNet raises when it is computed
    result = hvd.allreduce(bad, name="bad")
    try:
        result.wait_to_read()
        said = "nothing"
    except mx.MXNetError as error:
        said = str(error)
    again = hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum, name="bad").asnumpy().tolist()
    after = counters()
    return [said, again, [after[name] - before[name] for name in ("pushed", "run", "ended")]]


def test_failed_inputs_are_not_sent(mx_ranks: RankPool) -> None:
    for said, again, counts in mx_ranks.run(failed_before):
        assert "hvd_kernel" not in said
        assert "scale" in said
        assert again == [2.0]
        assert counts == [2, 1, 1]
