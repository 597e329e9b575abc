"""SyncBatchNormalization computes the values of one process with the whole batch, for every division of the batch."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]
CASES = {
    "rows": {"shape": (7, 4), "first": 3},
    "images": {"shape": (5, 3, 2, 4), "first": 4},
    "one rank has none": {"shape": (6, 4), "first": 0},
    "channels first": {"shape": (6, 4, 3), "first": 2, "axis": 1},
    "float16": {"shape": (8, 4), "first": 3, "dtype": "float16"},
    "neither scale nor center": {"shape": (7, 4), "first": 2, "scale": False, "center": False},
    "masked": {"shape": (6, 3, 4), "first": 2, "masked": True},
}


def against_one_process(
    shape: list[int], first: int, in_function: bool, masked: bool = False, **how: Any
) -> dict[str, float]:
    """The largest differences from the plain layer with the whole batch."""
    import numpy as np
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    random = np.random.default_rng(3)
    kind = how.get("dtype", "float32")
    whole = tf.constant(random.normal(3.0, 2.0, shape).astype(kind))
    weight = tf.constant(random.normal(size=shape).astype(kind))
    mask = tf.constant(random.random(shape[:-1]) < 0.7) if masked else None
    mine = slice(0, first) if hvd.rank() == 0 else slice(first, None)
    fused = {} if hasattr(tf.keras, "ops") else {"fused": False}  # Keras 2's fused variance is of a sample
    ours, plain = hvd.SyncBatchNormalization(**how), tf.keras.layers.BatchNormalization(**how, **fused)
    for layer in (ours, plain):
        layer.build(tuple(shape))

    def run(layer: Any, part: slice) -> Any:
        def once() -> Any:
            x = whole[part]
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True, **({} if mask is None else {"mask": mask[part]}))
                loss = tf.reduce_sum(tf.cast(y * weight[part], tf.float32) ** 2)
            return y, tape.gradient(loss, [x, *layer.trainable_variables])

        return tf.function(once)() if in_function else once()

    y, (dx, *own) = run(ours, mine)
    all_y, (all_dx, *whole_grads) = run(plain, slice(None))
    together = [hvd.allreduce(grad, op=hvd.Sum) for grad in own]

    def far(a: Any, b: Any) -> float:
        return float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)), initial=0.0))

    return {
        "output": far(y, all_y[mine]),
        "input's gradient": far(dx, all_dx[mine]),
        "weights' gradients": max((far(a, b) for a, b in zip(together, whole_grads, strict=True)), default=0.0),
        "moving mean": far(ours.moving_mean, plain.moving_mean),
        "moving variance": far(ours.moving_variance, plain.moving_variance),
        "inference": far(ours(whole), plain(whole)),
        "differs between ranks": float(len(set(hvd.allgather_object(np.array(ours.moving_variance).tobytes()))) - 1),
    }


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_values_of_one_process(tf_ranks: RankPool, case: str, in_function: bool) -> None:
    how = CASES[case]
    allowed = 2e-2 if how.get("dtype") == "float16" else 2e-4  # gradients are sums of up to 60 numbers of size 100
    for found in tf_ranks.run(with_case, how, in_function):
        assert max(found.values()) <= allowed, found
        assert found["differs between ranks"] == 0


def with_case(how: dict[str, Any], in_function: bool) -> dict[str, float]:
    return against_one_process(in_function=in_function, **how)


def in_a_model() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    layer = hvd.SyncBatchNormalization(momentum=0.5, name="norm")
    model = tf.keras.Sequential([tf.keras.Input((1,)), layer])
    model(tf.constant([[hvd.rank() * 4.0], [2.0 + hvd.rank() * 4.0]]), training=True)  # 0, 2 and 4, 6
    again = type(layer).from_config(layer.get_config())
    told = []
    for how in ({"fused": True}, {"fused": None}, {"renorm": True}):
        with pytest.raises(ValueError, match=r"\w") as caught:
            hvd.SyncBatchNormalization(**how)
        told.append(str(caught.value))
    return {
        "mean": float(layer.moving_mean[0]),
        "variance": float(layer.moving_variance[0]),
        "again": [again.momentum, again.name, type(again).__name__],
        "told": told,
    }


def test_in_a_model_with_its_configuration(tf_ranks: RankPool) -> None:
    for found in tf_ranks.run(in_a_model):
        assert found == {
            "mean": 1.5,  # half of 3
            "variance": 3.0,  # half of 1 and of 5
            "again": [0.5, "norm", "SyncBatchNormalization"],
            "told": ["SyncBatchNormalization does not support fused=True."] * 2
            + ["SyncBatchNormalization does not support renorm and virtual_batch_size."],
        }
