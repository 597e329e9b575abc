"""DistributedGradientTape beyond the trainings of frameworks/conformance: slices, structures, ranks that differ, local layers."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def modes(step: Any) -> list[Any]:
    """Return a step's results in eager mode, and twice in a function: traced, and again."""
    import tensorflow as tf

    function = tf.function(step)
    return [step(), function(), function()]


def plain(value: Any) -> Any:
    import tensorflow as tf

    return None if value is None else tf.convert_to_tensor(value).numpy().tolist()


def gradients() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    mine = hvd.rank() + 1.0
    w, rows = tf.Variable([1.0, 2.0]), tf.Variable(tf.ones([3, 2]))

    def recorded() -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            loss = mine * tf.reduce_sum(w * w) + tf.reduce_sum(tf.gather(rows, [hvd.rank()]))
        return tape, loss

    def after(**how: Any) -> Any:
        tape, loss = recorded()
        wrapped = hvd.DistributedGradientTape(tape, **how)
        assert isinstance(wrapped, tf.GradientTape)
        assert type(wrapped).__name__ == "GradientTape"
        return wrapped.gradient(loss, [w, rows])

    def before() -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = mine * tf.reduce_sum(w * w)
        return tape.gradient(loss, w)

    def named() -> Any:
        tape, loss = recorded()
        return hvd.DistributedGradientTape(tape).gradient(loss, {"b": w, "a": (rows,)}, use_generic_names=True)

    return {
        "after": [[plain(each) for each in pair] for pair in modes(after)],
        "is_slices": [isinstance(pair[1], tf.IndexedSlices) for pair in modes(after)],
        "dense": [[plain(each) for each in pair] for pair in modes(lambda: after(sparse_as_dense=True))],
        "is_dense": [isinstance(pair[1], tf.Tensor) for pair in modes(lambda: after(sparse_as_dense=True))],
        "one group": [[plain(each) for each in pair] for pair in modes(lambda: after(groups=1))],
        "before": [plain(each) for each in modes(before)],
        "structure": [[plain(each["b"]), plain(each["a"][0])] for each in modes(named)],
    }


def test_gradients_are_reduced_in_eager_mode_and_in_functions(tf_ranks: RankPool) -> None:
    w, rows = [3.0, 6.0], [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]
    for found in tf_ranks.run(gradients):
        assert found == {
            "after": [[w, rows]] * 3,
            "is_slices": [True] * 3,
            "dense": [[w, rows]] * 3,
            "is_dense": [True] * 3,
            "one group": [[w, rows]] * 3,
            "before": [w] * 3,
            "structure": [[w, rows]] * 3,
        }


def none_on_one_rank() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    w, head = tf.Variable([1.0, 2.0]), tf.Variable(3.0, name="head")

    def step(used: bool, **how: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * (hvd.rank() + 1.0) + (head if used else 0.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, [w, head], **how)

    told = []
    for run in (step, tf.function(step)):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            run(hvd.rank() == 0)
        told.append(str(caught.value))
        assert [plain(each) for each in run(True)] == [[1.5, 1.5], 1.0]  # the engine works on
    zero = step(hvd.rank() == 0, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return {"told": told, "zero": [plain(each) for each in zero]}


def test_a_gradient_that_is_none_on_one_rank_is_reported_by_name(tf_ranks: RankPool) -> None:
    for found in tf_ranks.run(none_on_one_rank, timeout=60):
        for told in found["told"]:
            assert "Ranks differ in which gradients are None" in told
            assert "tf.UnconnectedGradients.ZERO" in told
            assert "[head:0]" in told
        assert found["zero"] == [[1.5, 1.5], 0.5]


def slices_on_one_rank() -> str:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    rows = tf.Variable(tf.ones([3, 2]), name="rows")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(rows, [0]) if hvd.rank() else rows)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        hvd.DistributedGradientTape(tape).gradient(loss, [rows])
    return str(caught.value)


def test_slices_on_one_rank_are_reported_by_name(tf_ranks: RankPool) -> None:
    for told in tf_ranks.run(slices_on_one_rank, timeout=60):
        assert "[rows:0]" in told


def other_number_of_sources() -> str:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    variables = [tf.Variable(1.0) for _ in range(2 + hvd.rank())]
    with tf.GradientTape() as tape:
        loss = tf.add_n(variables)
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        hvd.DistributedGradientTape(tape).gradient(loss, variables)
    return str(caught.value)


def test_ranks_with_different_models_are_reported(tf_ranks: RankPool) -> None:
    for told in tf_ranks.run(other_number_of_sources, timeout=60):
        assert "DistributedGradientTape.present" in told


def local_layers() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    shared = tf.Variable([1.0, 2.0])
    layers = [tf.keras.layers.Dense(1, kernel_initializer="ones", use_bias=False) for _ in range(2)]
    x = tf.constant([[hvd.rank() + 1.0]])
    for layer in layers:
        layer.build((1, 1))

    def partial() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layers[1](layers[0](x)))
        tape = hvd.PartialDistributedGradientTape(tape, local_layers=layers[0])
        return tape.gradient(loss, [layer.trainable_weights[0] for layer in layers])

    with pytest.raises(ValueError, match="All local layers must be of"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[shared])
    return [[plain(each) for each in pair] for pair in modes(partial)]


def test_gradients_of_local_layers_stay_on_their_rank(tf_ranks: RankPool) -> None:
    for rank, found in enumerate(tf_ranks.run(local_layers)):
        assert found == [[[[(rank + 1.0) / 2]], [[1.5]]]] * 3


def two_tapes_in_one_function() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    a, b = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def step() -> Any:
        results = []
        for variable in (a, b):
            with tf.GradientTape() as tape:
                loss = (hvd.rank() + 1.0) * tf.reduce_sum(variable * variable)
            results += hvd.DistributedGradientTape(tape).gradient(loss, [variable])
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                loss = (hvd.rank() + 1.0) * tf.reduce_sum(a)
            a.assign_add(hvd.DistributedGradientTape(tape).gradient(loss, [a])[0])
        return results

    return [*[plain(each) for each in step()], a.numpy().tolist()]


def test_two_tapes_in_one_function_and_one_in_a_loop(tf_ranks: RankPool) -> None:
    for found in tf_ranks.run(two_tapes_in_one_function):
        assert found == [[3.0, 6.0], [3.0, 6.0, 9.0], [4.0, 5.0]]


def wrong_groups() -> None:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    for groups in (0, [tf.Variable(1.0)]):
        with pytest.raises(ValueError, match="groups should be"):
            hvd.DistributedGradientTape(tf.GradientTape(), groups=groups)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)


def test_groups_that_are_not_lists_of_variables_are_refused(tf_ranks: RankPool) -> None:
    tf_ranks.run(wrong_groups)
