"""Training steps counted without Python code: the source of the panel's steps/s for TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.environments import environment, run
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def counted(act: Any) -> int:
    from hvd_kernel.core import metrics

    before = metrics.snapshot()
    act()
    after = metrics.snapshot()
    assert after.samples == before.samples
    return after.step - before.step


def tapes() -> dict[str, int]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    w, b = tf.Variable([1.0, 2.0]), tf.Variable(1.0)

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w) + b
        return hvd.DistributedGradientTape(tape).gradient(loss, [w, b])

    function = tf.function(step)

    @tf.function
    def loop(turns: Any) -> Any:
        for _ in tf.range(turns):
            step()

    def local() -> Any:
        with tf.GradientTape() as tape:
            loss = w * w
        return tape.gradient(loss, w)

    return {
        "eager": counted(lambda: [step() for _ in range(3)]),
        "traced": counted(function),
        "again": counted(lambda: [function() for _ in range(5)]),
        "loop": counted(lambda: loop(7)),
        "without us": counted(local),
        "operations": counted(lambda: hvd.allreduce(w)),
    }


def test_every_reduction_of_a_tapes_gradients_is_one_step(tf_ranks: RankPool) -> None:
    expected = {"eager": 3, "traced": 1, "again": 5, "loop": 7, "without us": 0, "operations": 0}
    assert tf_ranks.run(tapes) == [expected, expected]


def samples() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.core import metrics

    hvd.init()

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def step(batch: Any) -> Any:
        hvd.count_samples(tf.shape(batch)[0])
        for _ in tf.range(2):
            hvd.count_samples(1)
        return batch

    def taken(act: Any) -> list[int]:
        before = metrics.snapshot()
        act()
        after = metrics.snapshot()
        return [after.step - before.step, after.samples - before.samples]

    with pytest.raises(tf.errors.InvalidArgumentError, match="must be a scalar"):
        hvd.count_samples([3])
    graph = taken(lambda: [step(tf.zeros([rows, 2])) for rows in (5, 7, 5)])
    return [graph, taken(lambda: hvd.count_samples(32)), taken(lambda: hvd.count_samples(tf.constant(4)))]


def test_samples_equal_the_users_count(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(samples) == [[[0, 23], [0, 32], [0, 4]]] * 2


def sessions() -> list[int]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    tf.compat.v1.disable_eager_execution()
    hvd.init()
    v1 = tf.compat.v1
    w = v1.get_variable("w", initializer=[1.0, 2.0])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
    third = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=3)
    train, rarely = optimizer.minimize(tf.reduce_sum(w * w)), third.minimize(tf.reduce_sum(w))
    with v1.Session() as session:
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        return [counted(lambda: [session.run(each) for _ in range(6)]) for each in (train, rarely)]


def test_an_optimizer_of_version_1_counts_in_sessions() -> None:
    assert run(environment("tf221"), sessions) == [[6, 2], [6, 2]]
