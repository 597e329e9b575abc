"""Reductions of tensors and IndexedSlices (F1, F3): values, what is refused, groups of several types."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def reductions() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    mine = hvd.rank() + 1
    x = tf.constant([1.0, 2.0]) * mine
    variable = tf.Variable(x)

    def both(function: Any) -> list[Any]:
        return [function().numpy().tolist(), tf.function(function)().numpy().tolist()]

    def session() -> list[Any]:
        with tf.Graph().as_default(), tf.compat.v1.Session() as run:
            return run.run(hvd.allreduce(tf.constant([1.0, 2.0]) * mine)).tolist()

    def mixed() -> Any:
        floats, whole, doubles = hvd.grouped_allreduce(
            [x, tf.constant([mine]), tf.constant([0.5], tf.float64) * mine], op=hvd.Sum
        )
        assert (whole.dtype, doubles.dtype) == (tf.int32, tf.float64)
        return tf.concat([floats, tf.cast(whole, tf.float32), tf.cast(doubles, tf.float32)], 0)

    return {
        "average": both(lambda: hvd.allreduce(x)),
        "session": session(),
        "sum": both(lambda: hvd.allreduce(x, op=hvd.Sum)),
        "not average": both(lambda: hvd.allreduce(x, average=False)),
        "max": both(lambda: hvd.allreduce(x, op=hvd.Max)),
        "variable": both(lambda: hvd.allreduce(variable)),
        "scales": both(lambda: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)),
        "fp16": both(lambda: hvd.allreduce(x, compression=hvd.Compression.fp16)),
        "whole": both(lambda: hvd.allreduce(tf.constant([3, 4]) * mine)),
        "on cpu": both(lambda: hvd.allreduce(x, device_dense="/cpu:0")),
        "mixed group": both(mixed),
        "none": hvd.grouped_allreduce([]),
        "scattered": both(lambda: hvd.reducescatter(x, op=hvd.Sum)),
        "scattered group": both(lambda: hvd.grouped_reducescatter([x, 2 * x])[1]),
    }


def test_reductions_of_tensors(tf_ranks: RankPool) -> None:
    for rank, found in enumerate(tf_ranks.run(reductions)):
        assert found == {
            "average": [[1.5, 3.0]] * 2,
            "session": [1.5, 3.0],
            "sum": [[3.0, 6.0]] * 2,
            "not average": [[3.0, 6.0]] * 2,
            "max": [[2.0, 4.0]] * 2,
            "variable": [[1.5, 3.0]] * 2,
            "scales": [[18.0, 36.0]] * 2,
            "fp16": [[1.5, 3.0]] * 2,
            "whole": [[4, 6]] * 2,
            "on cpu": [[1.5, 3.0]] * 2,
            "mixed group": [[3.0, 6.0, 3.0, 1.5]] * 2,
            "none": [],
            "scattered": [[[3.0, 6.0][rank]]] * 2,
            "scattered group": [[[3.0, 6.0][rank]]] * 2,
        }


def slices() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()

    def mine() -> Any:  # two rows on rank 1
        values = tf.constant([[1.0, 2.0], [3.0, 4.0]][: rank + 1])
        return tf.IndexedSlices(values, tf.constant([2, 0][: rank + 1]), tf.constant([3, 2]))

    def all_of(result: Any) -> list[Any]:
        assert isinstance(result, tf.IndexedSlices)
        return [each.numpy().tolist() for each in (result.values, result.indices, result.dense_shape)]

    told = []
    for how in ({"op": hvd.Min}, {"prescale_factor": 2.0}, {"postscale_factor": 2.0}, {"op": hvd.Adasum}):
        with pytest.raises(NotImplementedError) as caught:
            hvd.allreduce(mine(), **how)
        told.append(str(caught.value))
        with pytest.raises(NotImplementedError):
            hvd.grouped_allreduce([mine()], **how)
    grouped = hvd.grouped_allreduce([tf.constant([1.0]), mine(), tf.constant([2.0])], op=hvd.Sum)
    return {
        "average": all_of(hvd.allreduce(mine())),
        "sum": all_of(tf.function(lambda: hvd.allreduce(mine(), op=hvd.Sum))()),
        "grouped": [grouped[0].numpy().tolist(), all_of(grouped[1]), grouped[2].numpy().tolist()],
        "told": told,
    }


def test_slices_are_gathered(tf_ranks: RankPool) -> None:
    places = [[2, 2, 0], [3, 2]]
    whole = [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]
    for found in tf_ranks.run(slices):
        assert found == {
            "average": [[[0.5, 1.0], [0.5, 1.0], [1.5, 2.0]], *places],
            "sum": [whole, *places],
            "grouped": [[2.0], [whole, *places], [4.0]],
            "told": [
                "Only Sum and Average ops are supported with tf.IndexedSlices.",
                "Pre/postscale_factor are not supported with tf.IndexedSlices.",
                "Pre/postscale_factor are not supported with tf.IndexedSlices.",
                "The Adasum reduction does not support tf.IndexedSlices: pass sparse_as_dense=True to optimizer or tape.",
            ],
        }


def in_a_notebook() -> list[Any]:
    """A function that was traced before the ranks met again (F9)."""
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    traces = []

    @tf.function
    def average(rows: Any) -> Any:
        traces.append(1)
        everyone = hvd.allreduce(tf.IndexedSlices(rows, tf.constant([0]), tf.constant([1, 1])))
        return hvd.allreduce(rows), everyone.values

    rows = tf.constant([[hvd.rank() + 1.0]])
    first = [each.numpy().tolist() for each in average(rows)]
    hvd.shutdown()
    hvd.init()
    return [first, [each.numpy().tolist() for each in average(rows)], len(traces)]


def test_a_traced_function_outlives_the_ranks_meeting_again(tf_ranks: RankPool) -> None:
    values = [[[1.5]], [[0.5], [1.0]]]
    assert tf_ranks.run(in_a_notebook) == [[values, values, 1]] * 2
