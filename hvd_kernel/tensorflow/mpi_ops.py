"""Collectives on TensorFlow tensors, under Horovod's file name: each works in eager mode, tf.function and v1 graphs.

Operands are tensors, variables and values that TensorFlow converts to tensors, of the core's types (also bfloat16, bool
and complex types). Nothing blocks inside a graph: operations that do not depend on each other overlap.

Errors are ``tf.errors.FailedPreconditionError`` if the calls of the ranks differ (on every rank; the next operation
works), ``InvalidArgumentError`` for an invalid argument on this rank alone, ``AbortedError`` after the death of a rank
or a shutdown, and ``UnknownError`` otherwise.
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_kernel.core.basics import *  # noqa: F403 - names of Horovod's module too
from hvd_kernel.core.build_info import *  # noqa: F403
from hvd_kernel.core.ops import SPLITS_ARE_INTEGERS, Adasum, Average, Max, Min, Product, Sum, some
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, init
from hvd_kernel.core.tensor import check_op, reduction_of
from hvd_kernel.tensorflow import gradients, library
from hvd_kernel.tensorflow.calls import bits, call, order
from hvd_kernel.tensorflow.library import argument_error, set_id

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "handle_average_backwards_compatibility",
    "init",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]

library.ops()  # at import time: saved graphs with our operations can be loaded afterwards
gradients.register()


handle_average_backwards_compatibility = reduction_of


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the reduction (sum, average ...) over all ranks of a tensor, whose shape and type must be equal."""
    attributes = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set, "Allreduce")
    return call("Allreduce", tf.convert_to_tensor(tensor), name, **attributes)


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce several tensors, all of them or none; types may differ."""
    some(tensors, "grouped_allreduce")
    attributes = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set, "Allreduce")
    return list(call("GroupedAllreduce", _converted(tensors), name, **attributes))


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the rows of all ranks, concatenated; the number of rows may differ. Differentiable.

    Examples
    --------
    ::

        hvd.allgather(tf.fill([hvd.rank() + 1, 2], hvd.rank()))   # 2 ranks: shape [3, 2]
    """
    attributes = _common(ignore_name_scope, process_set, "Allgather")
    return call("Allgather", tf.convert_to_tensor(tensor), name, **attributes)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gather the rows of several tensors, all of them or none. Differentiable."""
    some(tensors, "grouped_allgather")
    attributes = _common(ignore_name_scope, process_set, "Allgather")
    return list(call("GroupedAllgather", _converted(tensors), name, **attributes))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's tensor on every rank; ``root_rank`` is a global rank also in a process set. Differentiable."""
    attributes = _common(ignore_name_scope, process_set, "Broadcast")
    return call("Broadcast", tf.convert_to_tensor(tensor), name, root_rank=root_rank, **attributes)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables with the root's, all of them or none.

    Returns
    -------
    list
        The result of ``assign`` for each variable: in a v1 graph, a tensor whose evaluation overwrites it.
    """
    some(variables, "broadcast_")
    attributes = _common(ignore_name_scope=False, process_set=process_set, doing="Broadcast")
    values = call("GroupedBroadcast", _converted(variables), name, root_rank=root_rank, **attributes)
    return [variable.assign(value) for variable, value in zip(variables, values, strict=True)]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[r]`` rows to rank r, or equal shares; return the received rows. Differentiable.

    With ``splits``, return a pair: the received rows, and the number of rows (int32) from each rank.
    """
    attributes = _common(ignore_name_scope, process_set, "Alltoall")
    rows = tf.zeros([0], tf.int32) if splits is None else _row_counts(splits)
    output, received = call("Alltoall", (tf.convert_to_tensor(tensor), rows), name, **attributes)
    return output if splits is None else (output, received)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce, and return this rank's share of the rows; the first ranks get one more if they do not divide equally."""
    attributes = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set, "Reducescatter")
    return call("Reducescatter", tf.convert_to_tensor(tensor), name, **attributes)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several tensors, all of them or none, and return this rank's rows of each."""
    some(tensors, "grouped_reducescatter")
    attributes = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set, "Reducescatter")
    return list(call("GroupedReducescatter", _converted(tensors), name, **attributes))


def join() -> Any:
    """Take part in the other ranks' allreduces with zeros until all ranks have joined.

    Returns
    -------
    tf.Tensor
        int32: the rank that joined last, the same everywhere.
    """
    last = library.ops().hvd_join()
    order()
    return last


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Wait until every rank of the set has called this function; in a graph, return the operation that waits."""
    barrier_op = library.ops().hvd_barrier(process_set_id=set_id(process_set, "Barrier"), name=name)
    order()
    return barrier_op


def count_samples(number: Any) -> Any:
    """Count samples of the training, for the panel's samples/s: once in each step, with the size of this rank's batch.

    Steps are counted automatically. In a custom loop the batch dimension is unknown, so that samples need this call;
    ``fit`` of Keras does not need it.

    Parameters
    ----------
    number
        An integer, or a scalar tensor: in a graph it is counted in every run.

    Raises
    ------
    tf.errors.InvalidArgumentError
        ``number`` is not a scalar.

    Examples
    --------
    ::

        @tf.function
        def step(images, labels):
            hvd.count_samples(tf.shape(images)[0])
            ...
    """
    return library.ops().hvd_samples(tf.cast(number, tf.int64))


# Evaluated in every run, so that a graph that was traced before another init() returns the new values.


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks of a process set, int32."""
    return library.ops().hvd_size(process_set_id=process_set_id, name=name)


def rank_op(name: str | None = None) -> Any:
    """Return the rank of this process, int32."""
    return library.ops().hvd_rank(name=name)


def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks on this host, int32."""
    return library.ops().hvd_local_size(name=name)


def local_rank_op(name: str | None = None) -> Any:
    """Return this rank's number on its host, int32."""
    return library.ops().hvd_local_rank(name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if this process is a member of the process set, else 0, int32."""
    return library.ops().hvd_process_set_included(process_set_id=process_set_id, name=name)


def _converted(tensors: Sequence[Any]) -> list[Any]:
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def _row_counts(splits: Any) -> Any:
    rows = tf.convert_to_tensor(splits, dtype_hint=tf.int32)
    if not rows.dtype.is_integer:
        raise argument_error(SPLITS_ARE_INTEGERS.format(dtype=rows.dtype.name))
    return tf.cast(rows, tf.int32)


def _common(ignore_name_scope: bool, process_set: ProcessSet, doing: str) -> dict[str, Any]:
    return {"ignore_name_scope": ignore_name_scope, "process_set_id": set_id(process_set, doing)}


def _reduction(
    op: int, prescale: float, postscale: float, ignore_name_scope: bool, process_set: ProcessSet, doing: str
) -> dict[str, Any]:
    check_op(op)
    scales = {"prescale_bits": bits(prescale), "postscale_bits": bits(postscale)}
    return {"reduce_op": op, **scales, **_common(ignore_name_scope, process_set, doing)}
