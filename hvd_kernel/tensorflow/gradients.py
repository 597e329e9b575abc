"""Gradients of the collectives, as Horovod defines them.

allreduce      the gradients, reduced in the same way
allgather      the average of the gradients; each rank keeps its own rows
broadcast      the average of the gradients on the root, zero on other ranks
alltoall       the gradient of every row, sent back to the rank of the row
reducescatter  the gradients of all shares, times the number of ranks if the operation is a sum

Each gradient consists of these operations again, so a gradient has a gradient.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_kernel.core.tensor import Average, Sum
from hvd_kernel.tensorflow import library
from hvd_kernel.tensorflow.calls import bits, call, factor

_NONE = None  # the gradient of a ticket


def register() -> None:
    """Register the gradients with TensorFlow; if the module is loaded again, the first registration stays."""
    for op, function in _OF.items():
        try:
            tf.RegisterGradient(f"Hvd{op}")(function)
        except KeyError:
            return


def _same(op: Any) -> dict[str, Any]:
    """Return the attributes of an operation that its gradient shares."""
    return {name: op.get_attr(name) for name in ("process_set_id", "ignore_name_scope")}


def _reduction(op: Any) -> dict[str, Any]:
    return {name: op.get_attr(name) for name in ("reduce_op", "prescale_bits", "postscale_bits")}


def _averages(op: Any, grads: list[Any]) -> list[Any]:
    reduction = {"reduce_op": Average, "prescale_bits": bits(1.0), "postscale_bits": bits(1.0)}
    return list(call("GroupedAllreduce", grads, None, **reduction, **_same(op)))


def _allreduce(op: Any, grad: Any) -> list[Any]:
    return [call("Allreduce", grad, None, **_reduction(op), **_same(op)), _NONE]


def _grouped_allreduce(op: Any, *grads: Any) -> list[Any]:
    return [*call("GroupedAllreduce", list(grads), None, **_reduction(op), **_same(op)), _NONE]


def _allgather(op: Any, *grads: Any) -> list[Any]:
    """Average the gradients, and keep this rank's rows, which follow those of lower ranks."""
    tensors = list(op.inputs)[: len(grads)]
    counts = call("Allgather", tf.stack([[tf.shape(tensor)[0] for tensor in tensors]]), None, **_same(op))
    rank = library.ops().hvd_rank(process_set_id=op.get_attr("process_set_id"))
    begins = tf.reduce_sum(counts[:rank], axis=0)
    local = counts[rank]
    means = _averages(op, list(grads))
    return [*(mean[begins[i] : begins[i] + local[i]] for i, mean in enumerate(means)), _NONE]


def _broadcast(op: Any, *grads: Any) -> list[Any]:
    is_root = tf.equal(library.ops().hvd_rank(), tf.cast(op.get_attr("root_rank"), tf.int32))
    return [*(tf.where(is_root, mean, tf.zeros_like(mean)) for mean in _averages(op, list(grads))), _NONE]


def _alltoall(op: Any, grad: Any, _received: Any) -> list[Any]:
    """Send the gradients of rows back; rows that were not sent have zeros."""
    tensor, received = op.inputs[0], op.outputs[1]
    back, _ = call("Alltoall", (grad, received), None, **_same(op))
    kept = tf.shape(tensor)[0] - tf.shape(back)[0]
    rest = tf.zeros(tf.concat([[kept], tf.shape(tensor)[1:]], 0), back.dtype)
    return [tf.concat([back, rest], 0), _NONE, _NONE]


def _reducescatter(op: Any, *grads: Any) -> list[Any]:
    reduction = _reduction(op)
    scale = tf.constant(factor(reduction["prescale_bits"]) * factor(reduction["postscale_bits"]), tf.float64)
    if reduction["reduce_op"] == Sum:
        scale *= tf.cast(library.ops().hvd_size(process_set_id=op.get_attr("process_set_id")), tf.float64)
    scaled = [grad * tf.cast(scale, grad.dtype) for grad in grads]
    return [*call("GroupedAllgather", scaled, None, **_same(op)), _NONE]


_OF = {
    "Allreduce": _allreduce,
    "GroupedAllreduce": _grouped_allreduce,
    "Allgather": _allgather,
    "GroupedAllgather": _allgather,
    "Broadcast": _broadcast,
    "GroupedBroadcast": _broadcast,
    "Alltoall": _alltoall,
    "Reducescatter": _reducescatter,
    "GroupedReducescatter": _reducescatter,
}
