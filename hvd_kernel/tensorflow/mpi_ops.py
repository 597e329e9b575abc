"""Collectives on TensorFlow tensors, under Horovod's file name: each works in eager mode, tf.function and v1 graphs.

They take tensors, variables and whatever becomes a tensor, of the types that the core knows (also bfloat16, bool and
complex ones). Nothing waits inside a graph: operations that do not depend on each other are under way together.

A failure raises ``tf.errors.FailedPreconditionError`` where ranks do not fit together (on every rank; the next
operation works), ``InvalidArgumentError`` for what this rank alone does wrong, ``AbortedError`` after a rank's death or
an end, ``UnknownError`` else.
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

library.ops()  # at the import: a saved graph with our operations can be loaded from here on
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
    """Return the sum, average ... of every rank's tensor, whose shape and type are equal on all ranks."""
    how = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set, "Allreduce")
    return call("Allreduce", tf.convert_to_tensor(tensor), name, **how)


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce several tensors, of several types if need be, together or not at all."""
    some(tensors, "grouped_allreduce")
    how = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set, "Allreduce")
    return list(call("GroupedAllreduce", _converted(tensors), name, **how))


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return every rank's rows, one after the other; the number of rows may differ. Differentiable.

    Example
    -------
    ::

        hvd.allgather(tf.fill([hvd.rank() + 1, 2], hvd.rank()))   # 2 ranks: shape [3, 2]
    """
    how = _place(ignore_name_scope, process_set, "Allgather")
    return call("Allgather", tf.convert_to_tensor(tensor), name, **how)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gather the rows of several tensors, together or not at all. Differentiable."""
    some(tensors, "grouped_allgather")
    how = _place(ignore_name_scope, process_set, "Allgather")
    return list(call("GroupedAllgather", _converted(tensors), name, **how))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's tensor on every rank; ``root_rank`` is a global rank also in a process set. Differentiable."""
    how = _place(ignore_name_scope, process_set, "Broadcast")
    return call("Broadcast", tf.convert_to_tensor(tensor), name, root_rank=root_rank, **how)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables by the root's, all together.

    Returns
    -------
    list
        What ``assign`` returns for each: in a v1 graph, tensors whose evaluation does it.
    """
    some(variables, "broadcast_")
    how = _place(ignore_name_scope=False, process_set=process_set, doing="Broadcast")
    values = call("GroupedBroadcast", _converted(variables), name, root_rank=root_rank, **how)
    return [variable.assign(value) for variable, value in zip(variables, values, strict=True)]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[r]`` rows to rank r, or equal shares; return what came. Differentiable.

    With ``splits`` the result is a pair: what came, and how many rows (int32) came from each rank.
    """
    how = _place(ignore_name_scope, process_set, "Alltoall")
    rows = tf.zeros([0], tf.int32) if splits is None else _row_counts(splits)
    output, received = call("Alltoall", (tf.convert_to_tensor(tensor), rows), name, **how)
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
    """Reduce, and return this rank's share of the rows; the first ranks get one more where they do not divide."""
    how = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set, "Reducescatter")
    return call("Reducescatter", tf.convert_to_tensor(tensor), name, **how)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several tensors, together or not at all, and return this rank's rows of each."""
    some(tensors, "grouped_reducescatter")
    how = _reduction(op, prescale_factor, postscale_factor, ignore_name_scope, process_set, "Reducescatter")
    return list(call("GroupedReducescatter", _converted(tensors), name, **how))


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
    """Wait until every rank of the set has come here; in a graph, return the operation that does it."""
    done = library.ops().hvd_barrier(process_set_id=set_id(process_set, "Barrier"), name=name)
    order()
    return done


def count_samples(number: Any) -> Any:
    """Count samples of the training, for the panel's samples/s: once in each step, with the size of this rank's batch.

    Steps are counted without it. Which dimension of which tensor of a loop of one's own is the batch nobody can know;
    ``fit`` of Keras needs no such line.

    Parameters
    ----------
    number
        An integer, or a tensor of one: in a graph it is counted whenever that runs.

    Raises
    ------
    tf.errors.InvalidArgumentError
        It is no scalar.

    Example
    -------
    ::

        @tf.function
        def step(images, labels):
            hvd.count_samples(tf.shape(images)[0])
            ...
    """
    return library.ops().hvd_samples(tf.cast(number, tf.int64))


# Asked when they run: a graph that was traced before a new init() is right after it.


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks of a process set, int32."""
    return library.ops().hvd_size(process_set_id=process_set_id, name=name)


def rank_op(name: str | None = None) -> Any:
    """Return this process's rank, int32."""
    return library.ops().hvd_rank(name=name)


def local_size_op(name: str | None = None) -> Any:
    """Return the number of ranks on this host, int32."""
    return library.ops().hvd_local_size(name=name)


def local_rank_op(name: str | None = None) -> Any:
    """Return this rank's number on its host, int32."""
    return library.ops().hvd_local_rank(name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 where this process is a member of the set, else 0, int32."""
    return library.ops().hvd_process_set_included(process_set_id=process_set_id, name=name)


def _converted(tensors: Sequence[Any]) -> list[Any]:
    return [tf.convert_to_tensor(tensor) for tensor in tensors]


def _row_counts(splits: Any) -> Any:
    rows = tf.convert_to_tensor(splits, dtype_hint=tf.int32)
    if not rows.dtype.is_integer:
        raise argument_error(SPLITS_ARE_INTEGERS.format(dtype=rows.dtype.name))
    return tf.cast(rows, tf.int32)


def _place(ignore_name_scope: bool, process_set: ProcessSet, doing: str) -> dict[str, Any]:
    return {"ignore_name_scope": ignore_name_scope, "process_set_id": set_id(process_set, doing)}


def _reduction(
    op: int, prescale: float, postscale: float, ignore_name_scope: bool, process_set: ProcessSet, doing: str
) -> dict[str, Any]:
    check_op(op)
    scales = {"prescale_bits": bits(prescale), "postscale_bits": bits(postscale)}
    return {"reduce_op": op, **scales, **_place(ignore_name_scope, process_set, doing)}
