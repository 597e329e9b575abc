"""A gradient that is None on some ranks only: found before its reduction would wait for ever, and told by name.

Every reduction of a tape's or an optimizer's gradients begins with one small sum over the ranks: how many have a dense
gradient, and how many slices, for each source. All or none of those that take part must have one; ranks that have
joined do not. So a gradient that is None everywhere stays None, and one that only some ranks have is an error on all,
with the remedy: the engine works on. The sum needs nothing of the step, so in a graph it is there before the first
gradient is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.tensorflow.mpi_ops import Sum, _allreduce

_SENTENCE = (
    "Ranks differ in which gradients are None (or tf.IndexedSlices): a reduction would wait for ever. Use the variable "
    "on every rank, or take the gradient as zeros: unconnected_gradients=tf.UnconnectedGradients.ZERO. It is that of:"
)


def checked(grads: Sequence[Any], labels: Sequence[str], name: str, process_set: ProcessSet) -> Any:
    """Return an operation that fails where the ranks differ; what is reduced goes behind it.

    Parameters
    ----------
    grads
        n tensors, IndexedSlices or None.
    labels
        What the n sources are called.
    """
    dense = [int(_is_dense(grad)) for grad in grads]
    slices = [int(isinstance(grad, tf.IndexedSlices)) for grad in grads]
    mine = tf.constant([1, *dense, *slices], tf.int32)
    everyone = _allreduce(mine, name=name, op=Sum, ignore_name_scope=True, process_set=process_set)
    some = tf.math.floormod(everyone, everyone[0])  # 0: none, or all that take part

    def told() -> Any:
        differs = tf.reduce_any(tf.not_equal(tf.reshape(some[1:], [2, len(grads)]), 0), axis=0)
        culprits = tf.boolean_mask(tf.constant(list(labels), tf.string), differs)
        failure = tf.raw_ops.Assert(condition=False, data=[_SENTENCE, culprits], summarize=len(grads))
        with tf.control_dependencies([failure]):
            return tf.constant(False)

    # Few operations until here: the first gradient may wait for them.
    return tf.cond(tf.reduce_all(tf.equal(some, 0)), lambda: tf.constant(True), told)


def _is_dense(grad: Any) -> bool:
    return grad is not None and not isinstance(grad, tf.IndexedSlices)
