"""Variables and objects of one rank, given to all: in eager mode, functions and sessions, Keras's too."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def variables() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()
    whole = [tf.int64, tf.uint8, tf.uint32, tf.uint64]
    kinds = [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.bool, tf.complex64, *whole]

    def fresh() -> list[Any]:
        return [tf.Variable(tf.cast([rank, 1, 0], kind)) for kind in kinds]

    def plain(given: list[Any]) -> list[Any]:
        return [tf.cast(each, tf.float32).numpy().tolist() for each in given]

    two, three = fresh(), fresh()
    assert hvd.broadcast_variables(three, root_rank=1, inplace=True) is None

    @tf.function
    def step(first: bool) -> Any:
        if first:
            hvd.broadcast_variables(two, root_rank=1)
        return tf.constant(0.0)

    step(True)
    step(False)
    return {"function": plain(two), "in place": plain(three)}


def test_variables_of_every_type(tf_ranks: RankPool) -> None:
    for found in tf_ranks.run(variables):
        assert found == dict.fromkeys(("function", "in place"), [[1.0, 1.0, 0.0]] * 10)


def models() -> list[Any]:
    import numpy as np
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)])
    model.build((None, 2))
    optimizer = tf.keras.optimizers.Adam(0.1 * (hvd.rank() + 1))
    optimizer.build(model.trainable_variables)
    own = [np.array(each) for each in [*model.variables, *_listed(optimizer.variables)]]
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(_listed(optimizer.variables), root_rank=0)
    now = [np.array(each) for each in [*model.variables, *_listed(optimizer.variables)]]
    roots = hvd.broadcast_object(own, root_rank=0)
    same = all((a == b).all() for a, b in zip(now, roots, strict=True))
    return [same, len(now), float(optimizer.learning_rate), hasattr(tf.keras, "ops")]


def _listed(variables: Any) -> list[Any]:
    return list(variables() if callable(variables) else variables)


def test_a_model_and_its_optimizer(tf_ranks: RankPool) -> None:
    for rank, (same, count, rate, keras_3) in enumerate(tf_ranks.run(models)):
        assert same
        assert count > 10
        # Keras 2 does not count the rate among the optimizer's variables: each rank keeps its own.
        assert rate == pytest.approx(0.1 if keras_3 else 0.1 * (rank + 1))


def shapes_that_differ() -> list[str]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    wrong = tf.Variable(tf.zeros([2 + hvd.rank()]), name="wrong")
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        hvd.broadcast_variables([tf.Variable(1.0), wrong], root_rank=0)
    assert hvd.allreduce(tf.constant(1.0), op=hvd.Sum).numpy() == 2.0
    return [str(caught.value), *caught.value.__notes__]


def test_variables_whose_shapes_differ_are_named(tf_ranks: RankPool) -> None:
    for rank, (told, note) in enumerate(tf_ranks.run(shapes_that_differ)):
        assert "Mismatched BROADCAST" in told
        assert note.startswith(f"It is variable 'wrong:0', of shape ({2 + rank},)")


def numbers_that_differ() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()

    def made(count: int) -> list[Any]:
        return [tf.Variable(tf.fill([n + 1], float(hvd.rank())), name=f"v{n}") for n in range(count)]

    @tf.function
    def step(given: list[Any]) -> Any:
        hvd.broadcast_variables(given, root_rank=0)
        return tf.constant(0.0)

    told = []
    for count in (2 + hvd.rank(), hvd.rank()):  # the second time rank 0 has none at all
        for give in (lambda given: hvd.broadcast_variables(given, root_rank=0), step):
            given = made(count)
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                give(given)
            assert all((each.numpy() == float(hvd.rank())).all() for each in given), "nothing was given"
            told.append(
                str(caught.value).partition("assertion failed: ")[2].partition("\n")[0].removesuffix(" [Op:Assert]")
            )
    again = made(2)
    hvd.broadcast_variables(again, root_rank=1)
    return [told, again[1].numpy().tolist()]


def test_different_numbers_of_variables_are_reported_by_name(tf_ranks: RankPool) -> None:
    """The call blocked forever: the rank with more variables had operations that the other never started."""

    def told(least: int, most: int, mine: int, names: str) -> str:
        head = "[Ranks give different numbers of variables to broadcast_variables, between]"
        return f"{head} [{least}] [and] [{most}] [. This one has {mine}; others lack:] [{names}]"

    for rank, (said, again) in enumerate(tf_ranks.run(numbers_that_differ)):
        first = told(2, 3, 2 + rank, "v2:0 (3,)" if rank == 1 else "")
        second = told(0, 1, rank, "v0:0 (1,)" if rank == 1 else "")
        assert said == [first, first, second, second]
        assert again == [1.0, 1.0]


def objects() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    give = hvd.broadcast_object_fn(root_rank=1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inside = hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1, session=session)
    return [
        hvd.broadcast_object([hvd.rank()] * 3, root_rank=1),
        [give(hvd.rank()), give("b" if hvd.rank() else None)],
        inside,
        hvd.allgather_object({"rank": hvd.rank()}),
    ]


def test_objects(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(objects) == [[[1, 1, 1], [1, "b"], {"rank": 1}, [{"rank": 0}, {"rank": 1}]]] * 2
