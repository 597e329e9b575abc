"""Reductions of tensors in functions, and of IndexedSlices (F1, F3): values and refusals."""

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

    def mixed() -> Any:
        floats, whole = hvd.grouped_allreduce([x, tf.constant([mine])], op=hvd.Sum)
        assert whole.dtype == tf.int32
        return tf.concat([floats, tf.cast(whole, tf.float32)], 0)

    return {
        "variable": both(lambda: hvd.allreduce(variable)),
        "scales": both(lambda: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)),
        "fp16": both(lambda: hvd.allreduce(x, compression=hvd.Compression.fp16)),
        "on cpu": both(lambda: hvd.allreduce(x, device_dense="/cpu:0")),
        "mixed group": both(mixed),
        "scattered group": both(lambda: hvd.grouped_reducescatter([x, 2 * x])[1]),
    }


def test_reductions_in_eager_mode_and_in_functions(tf_ranks: RankPool) -> None:
    for rank, found in enumerate(tf_ranks.run(reductions)):
        assert found == {
            "variable": [[1.5, 3.0]] * 2,
            "scales": [[18.0, 36.0]] * 2,
            "fp16": [[1.5, 3.0]] * 2,
            "on cpu": [[1.5, 3.0]] * 2,
            "mixed group": [[3.0, 6.0, 3.0]] * 2,
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
