"""Batch normalisation over the samples of all ranks, as one process computes it for the whole batch. A Keras layer.

The layer belongs to the Keras that ``tf.keras`` is: 3, or 2 through tf-keras. Ranks may have different numbers of
samples, or none: each sample has the same weight.

Terms.
  channel  the axis that is not averaged over
  moments  of a channel: its mean and its variance, over the samples of all ranks
  part     of a rank: the number of values of each channel, their mean, and the sum of their squared distances from it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_kernel.tensorflow.mpi_ops import Sum, _allreduce, allgather

_BatchNormalization: Any = tf.keras.layers.BatchNormalization
_NAME = "sync_batch_norm"  # the same in every layer: ranks run layers in one order


@tf.keras.utils.register_keras_serializable(package="hvd_kernel")
class SyncBatchNormalization(_BatchNormalization):
    """A ``tf.keras.layers.BatchNormalization`` whose training statistics are those of all ranks.

    In inference it is the plain layer. As everywhere in Horovod, the gradients of gamma and beta are this rank's part.

    Parameters
    ----------
    fused
        Must be False: the fused operation does not communicate.

    Raises
    ------
    ValueError
        ``fused`` is not False, or ``renorm`` is requested.

    Examples
    --------
    ::

        model = tf.keras.Sequential([tf.keras.layers.Dense(8), hvd.SyncBatchNormalization()])
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused in {True, None}:
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if kwargs.get("renorm") or kwargs.get("virtual_batch_size"):
            raise ValueError("SyncBatchNormalization does not support renorm and virtual_batch_size.")
        super().__init__(**kwargs)
        if getattr(self, "fused", None) is not None:
            self.fused = False

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Normalise the inputs.

        Parameters
        ----------
        inputs
            A tensor of any number of dimensions, samples first.
        mask
            The values that count, with the dimensions of the inputs except the last.
        """
        if not isinstance(training, bool) and tf.is_tensor(training):
            raise ValueError("SyncBatchNormalization needs training=True or False as a Python value, not a tensor.")
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        tensor = tf.convert_to_tensor(inputs)
        x = tf.cast(tensor, tf.float32) if tensor.dtype in {tf.float16, tf.bfloat16} else tensor
        channel = self._channel(x)
        mean, variance = _moments_of(channel, _weights(x, mask))(x)
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            old = tf.convert_to_tensor(moving)
            moving.assign(old * self.momentum + tf.cast(new, old.dtype) * (1.0 - self.momentum))
        shape = [-1 if axis == channel else 1 for axis in range(len(x.shape))]
        beta = _shaped(self.beta, shape, x.dtype) if self.center else None
        gamma = _shaped(self.gamma, shape, x.dtype) if self.scale else None
        normal = tf.nn.batch_normalization(
            x, tf.reshape(mean, shape), tf.reshape(variance, shape), beta, gamma, self.epsilon
        )
        return tf.cast(normal, tensor.dtype)

    def _channel(self, x: Any) -> int:
        (axis,) = self.axis if isinstance(self.axis, list | tuple) else [self.axis]
        return int(axis) % len(x.shape)


def _keep(value: Any) -> None:
    """Make a graph compute an unused value, by an assertion on it that always holds.

    TensorFlow prunes operations that contribute to empty tensors only: on a rank without samples, the gradient's
    collective.
    """
    if not tf.executing_eagerly():
        count = tf.reduce_sum(tf.cast(tf.math.is_nan(value), tf.int32))
        tf.raw_ops.Assert(condition=count >= 0, data=[count])


def _weights(x: Any, mask: Any) -> Any:
    """Return 1 for values that count and 0 for others, in the shape of ``x``."""
    if mask is None:
        return tf.ones_like(x)
    return tf.broadcast_to(tf.cast(mask, x.dtype)[..., tf.newaxis], tf.shape(x))


def _moments_of(channel: int, weights: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return a differentiable function of x for each channel's mean and variance over all ranks."""

    @tf.custom_gradient
    def moments(x: Any) -> Any:
        others = [axis for axis in range(len(x.shape)) if axis != channel]
        shape = [-1 if axis == channel else 1 for axis in range(len(x.shape))]
        count = tf.reduce_sum(weights, others)
        local_mean = tf.math.divide_no_nan(tf.reduce_sum(x * weights, others), count)
        squares = tf.reduce_sum(tf.square(x - tf.reshape(local_mean, shape)) * weights, others)
        # float64, as counts and differences of means need the precision.
        part = tf.cast(tf.stack([count, local_mean, squares])[tf.newaxis], tf.float64)
        counts, means, spreads = tf.unstack(allgather(part, name=f"{_NAME}.moments", ignore_name_scope=True), axis=1)
        total = tf.reduce_sum(counts, 0)
        mean = tf.math.divide_no_nan(tf.reduce_sum(means * counts, 0), total)
        spread = tf.reduce_sum(spreads + counts * tf.square(means - mean), 0)
        variance = tf.math.divide_no_nan(spread, total)

        def grad(to_mean: Any, to_variance: Any) -> Any:
            """Return the gradient of x: every value contributes to the moments of all ranks."""
            upstream = _allreduce(
                tf.stack([to_mean, to_variance]), name=f"{_NAME}.sums", op=Sum, ignore_name_scope=True
            )
            if 0 in x.shape:
                _keep(upstream)
            per_value = tf.math.divide_no_nan(upstream, tf.cast(total, x.dtype))
            distance = x - tf.reshape(tf.cast(mean, x.dtype), shape)
            return weights * (tf.reshape(per_value[0], shape) + 2.0 * tf.reshape(per_value[1], shape) * distance)

        return (tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)), grad

    differentiable: Callable[[Any], tuple[Any, Any]] = moments
    return differentiable


def _shaped(variable: Any, shape: list[int], dtype: Any) -> Any:
    return tf.reshape(tf.cast(tf.convert_to_tensor(variable), dtype), shape)
