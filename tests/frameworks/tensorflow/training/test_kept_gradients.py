"""Gradients belong to variables and to the user: listed twice, in another order, None in some passes, kept, clipped, infinite."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def plain(value: Any) -> Any:
    import numpy as np
    import tensorflow as tf

    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if value is None else np.asarray(tf.convert_to_tensor(value)).tolist()


def listed_twice() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    w, v = tf.Variable([1.0]), tf.Variable([1.0])

    def gradients(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = (hvd.rank() + 1.0) * tf.reduce_sum(w * w + 3.0 * v)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum, **options).gradient(loss, [w, v, w])

    cases: dict[str, Any] = {
        "one by one": {},
        "one group": {"groups": 1},
        "listed once": {"groups": [[w]]},
        "twice in a group": {"groups": [[w, w], [v]]},
        "in two groups": {"groups": [[w], [v, w]]},
    }
    return {
        name: [plain(step(**options)) for step in (gradients, tf.function(gradients))]
        for name, options in cases.items()
    }


def test_a_variable_listed_twice_is_summed_once(tf_ranks: RankPool) -> None:
    for results in tf_ranks.run(listed_twice):
        for name, modes in results.items():
            assert modes == [[[6.0], [9.0], [6.0]]] * 2, name


def kept() -> dict[str, Any]:
    import numpy as np
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    mine = hvd.rank() + 1.0
    w = tf.Variable([1.0, 2.0])
    reduced, views, local, local_views = [], [], [], []
    for step in range(4):
        with tf.GradientTape() as tape:
            loss = mine * step * tf.reduce_sum(w)
        grad = tape.gradient(loss, w)
        local.append(grad)
        local_views.append(np.asarray(grad))  # shares the tensor's memory
        total = hvd.allreduce(grad, op=hvd.Sum)
        reduced.append(total)
        views.append(np.asarray(total))
    array = np.full(4, mine, np.float32)
    tensor = tf.convert_to_tensor(array)
    total = hvd.allreduce(tensor, op=hvd.Sum)
    variable = tf.Variable(array)
    gathered = hvd.allgather(variable)
    variable.assign_add(tf.ones(4))
    return {
        "reduced": plain(reduced),
        "views": plain(views),
        "local": plain(local),
        "local views": plain(local_views),
        "array": [array.tolist(), plain(total)],
        "variable": [plain(gathered), plain(variable)],
    }


def test_kept_gradients_keep_their_values(tf_ranks: RankPool) -> None:
    for rank, results in enumerate(tf_ranks.run(kept)):
        totals = [[3.0 * step] * 2 for step in range(4)]
        local = [[(rank + 1.0) * step] * 2 for step in range(4)]
        assert results == {
            "reduced": totals,
            "views": totals,
            "local": local,
            "local views": local,
            "array": [[rank + 1.0] * 4, [3.0] * 4],
            "variable": [[1.0] * 4 + [2.0] * 4, [rank + 2.0] * 4],
        }


def clipped() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()

    def after_the_reduction() -> Any:
        w = tf.Variable([0.0, 0.0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * tf.constant([[8.0, 0.0], [0.0, 8.0]])[rank])
        grad = hvd.DistributedGradientTape(tape).gradient(loss, w)
        return tf.clip_by_global_norm([grad], 1.0)[0][0] * tf.sqrt(2.0)

    def infinite_on_one_rank() -> Any:
        w = tf.Variable([1.0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * (float("inf") if rank else 1.0))
        return hvd.DistributedGradientTape(tape).gradient(loss, w)

    return {
        "clipped": [[round(float(value), 5) for value in after_the_reduction()]],
        "infinite": plain(infinite_on_one_rank()),
    }


def test_edits_after_a_tape_see_the_reduced_gradient(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(clipped) == [{"clipped": [[1.0, 1.0]], "infinite": [float("inf")]}] * 2


def passes_of_two() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.gradient_aggregation import PASSES_DIFFER, Aggregation

    hvd.init()
    a, b = tf.Variable(0.0), tf.Variable(0.0)

    def reduced(grads: Any, sources: Any) -> Any:
        return [None if grad is None else hvd.allreduce(grad, op=hvd.Sum) for grad in grads]

    def run(*passes: tuple[list[Any], list[Any]], traced: bool = False) -> Any:
        aggregation = Aggregation(2, reduced, sparse_as_dense=False, average=False)
        applied = tf.Variable(0)

        def step(grads: Any, sources: Any) -> Any:
            results = aggregation.compute_gradients(grads, sources)
            aggregation.apply_gradients(lambda: applied.assign_add(1), None, list(zip(results, sources, strict=True)))
            return results

        every = []
        for numbers, sources in passes:
            grads = [None if number is None else tf.constant(float(number)) for number in numbers]
            try:
                results = tf.function(lambda g=grads, s=sources: step(g, s))() if traced else step(grads, sources)
            except tf.errors.InvalidArgumentError as error:
                return PASSES_DIFFER in str(error)
            every.append(plain(results))
        return [*every[1::2], int(applied)]

    cases: dict[str, Any] = {
        "in order": [([1, 10], [a, b]), ([2, 20], [a, b])],
        "in another order": [([1, 10], [a, b]), ([20, 2], [b, a])],
        "None in the last pass": [([1, 10], [a, b]), ([None, 20], [a, b]), ([1, 10], [a, b]), ([2, 20], [a, b])],
        "None in the first pass": [([1, 10], [a, b]), ([2, 20], [a, b]), ([None, 10], [a, b]), ([2, 20], [a, b])],
        "None in every pass": [([None, 10], [a, b]), ([None, 20], [a, b])],
        "twice": [([1, 3], [a, a]), ([2, 4], [a, a])],
        "others in another period": [([1], [a]), ([2], [a]), ([10], [b]), ([20], [b])],
        "others in one period": [([1], [a]), ([20], [b])],
    }
    return {name: [run(*passes), run(*passes, traced=True)] for name, passes in cases.items()}


def test_passes_are_summed_per_variable(tf_ranks: RankPool) -> None:
    right: dict[str, Any] = {
        "in order": [[6.0, 60.0], 1],
        "in another order": [[60.0, 6.0], 1],
        "None in the last pass": [[2.0, 60.0], [6.0, 60.0], 2],
        "None in the first pass": [[6.0, 60.0], [4.0, 60.0], 2],
        "None in every pass": [[None, 60.0], 1],
        "twice": [[6.0, 14.0], 1],
        "others in another period": [[6.0], [60.0], 2],
        "others in one period": True,
    }
    for results in tf_ranks.run(passes_of_two):
        for name, modes in results.items():
            assert modes == [right[name]] * 2, name


def adasum_passes() -> Any:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    a, b = tf.Variable([1.0, 0.0]), tf.Variable([5.0, 0.0])
    optimizer = hvd.DistributedOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, backward_passes_per_step=2
    )
    apart = tf.constant([[1.0, 0.0], [0.0, 1.0]])[hvd.rank()]  # orthogonal: Adasum adds
    for grads in ([apart, None], [None, apart], [apart, None], [None, apart]):
        optimizer.apply_gradients(list(zip(grads, [a, b], strict=True)))
    return plain([a, b])


def test_adasum_combines_the_updates_of_every_pass(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(adasum_passes) == [[[-1.0, -2.0], [3.0, -2.0]]] * 2
