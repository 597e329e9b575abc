"""DistributedOptimizer for optimizers of TensorFlow 1: gradients averaged, several passes a step (F8), Adasum, hooks."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]
BOTH = pytest.mark.parametrize("references", [False, True], ids=["resource", "reference"])


def in_a_session(references: bool, make: str, steps: int, **how: Any) -> tuple[list[Any], int]:
    """The weights after each step of a session that begins with rank 0's, and the steps that were counted.

    The gradient of rank r is (r+1) * w, the learning rate is a quarter.
    """
    import tensorflow.compat.v1 as tf1

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    (tf1.disable_resource_variables if references else tf1.enable_resource_variables)()
    (tf1.disable_control_flow_v2 if references else tf1.enable_control_flow_v2)()
    try:
        with tf1.Graph().as_default():
            w = tf1.get_variable("w", initializer=tf1.constant([1.0, 2.0]) * (hvd.rank() + 1))
            counted = tf1.train.get_or_create_global_step()
            optimizer = hvd.DistributedOptimizer(getattr(tf1.train, make)(0.25), **how)
            assert isinstance(optimizer, tf1.train.Optimizer)
            train = optimizer.minimize(0.5 * (hvd.rank() + 1) * tf1.reduce_sum(w * w), global_step=counted)
            with tf1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
                seen = [session.run(w).tolist()]
                for _ in range(steps):
                    session.run(train)
                    seen.append(session.run(w).tolist())
                return seen, int(session.run(counted))
    finally:
        tf1.enable_resource_variables()
        tf1.enable_control_flow_v2()


def times(*factors: float) -> list[list[float]]:
    return [[factor, 2 * factor] for factor in factors]


@BOTH
def test_gradients_are_averaged_in_a_session(tf_ranks: RankPool, references: bool) -> None:
    for seen, counted in tf_ranks.run(average, references):
        assert seen == times(1.0, 0.625, 0.390625)  # the factor is 1 - 1.5 / 4
        assert counted == 2


def average(references: bool) -> Any:
    return in_a_session(references, "GradientDescentOptimizer", 2)


@BOTH
@pytest.mark.parametrize("averaged", [False, True], ids=["summed", "averaged"])
def test_three_passes_make_one_step(tf_ranks: RankPool, references: bool, averaged: bool) -> None:
    factor = 1 - 1.5 / 4 * (1 if averaged else 3)
    for seen, counted in tf_ranks.run(three_passes, references, averaged):
        assert seen == times(1, 1, 1, factor, factor, factor, factor**2, factor**2)
        assert counted == 7


def three_passes(references: bool, averaged: bool) -> Any:
    how = {"backward_passes_per_step": 3, "average_aggregated_gradients": averaged}
    return in_a_session(references, "GradientDescentOptimizer", 7, **how)


@BOTH
def test_passes_with_an_optimizer_that_has_slots(tf_ranks: RankPool, references: bool) -> None:
    """Momentum 0 would be plain descent; Adagrad's slots are made within the branch that steps."""
    one, other = tf_ranks.run(adagrad, references)
    assert one == other
    seen, counted = one
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert counted == 3


def adagrad(references: bool) -> Any:
    return in_a_session(references, "AdagradOptimizer", 3, backward_passes_per_step=2)


@BOTH
def test_adasum_averages_parallel_steps(tf_ranks: RankPool, references: bool) -> None:
    for seen, counted in tf_ranks.run(adasum, references):
        assert seen == times(1.0, 0.625)  # moves -w/4 and -w/2 are parallel: their average
        assert counted == 1


def adasum(references: bool) -> Any:
    import hvd_kernel.tensorflow as hvd

    return in_a_session(references, "GradientDescentOptimizer", 1, op=hvd.Adasum)


@BOTH
def test_adasum_of_two_steps_combines_the_second(tf_ranks: RankPool, references: bool) -> None:
    for rank, (seen, counted) in enumerate(tf_ranks.run(adasum_of_two, references)):
        own = 1 - (rank + 1) / 4
        assert seen == times(1.0, own, 0.40625)  # moves to 0.5625 and 0.25: their average
        assert counted == 2


def adasum_of_two(references: bool) -> Any:
    import hvd_kernel.tensorflow as hvd

    return in_a_session(references, "GradientDescentOptimizer", 2, op=hvd.Adasum, backward_passes_per_step=2)


def refused() -> dict[str, str]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    make = tf.compat.v1.train.GradientDescentOptimizer
    told = {}
    with pytest.raises(ValueError, match=r"\w") as caught:
        hvd.DistributedOptimizer("sgd")
    told["other"] = str(caught.value)
    rows = tf.Variable(tf.ones([2, 1]))
    several = hvd.DistributedOptimizer(make(1.0), backward_passes_per_step=2)
    with pytest.raises(ValueError, match=r"\w") as caught:
        several.minimize(lambda: tf.reduce_sum(tf.gather(rows, [0])))
    told["slices"] = str(caught.value)
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)
    return told


def test_other_optimizers_and_slices_in_passes_are_refused(tf_ranks: RankPool) -> None:
    want = {
        "other": "Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer: sgd",
        "slices": "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False.",
    }
    assert tf_ranks.run(refused) == [want] * 2
