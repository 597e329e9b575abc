"""Broadcast of one rank's variables or objects to all. Horovod's signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from hvd_kernel.core import ops
from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.tensorflow.mpi_ops import Min, _allreduce, broadcast, broadcast_

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]

_NAME = "broadcast_variables"
_COUNTS = "Ranks give different numbers of variables to broadcast_variables, between"


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Overwrite variables by the root's: usually ``model.variables``, then those of the optimizer.

    Parameters
    ----------
    variables
        All ranks name as many, of the same shapes and types, in the same order.
    root_rank
        A global rank, also in a set.
    inplace
        One operation for all of them, which TensorFlow may carry out in their memory.

    Returns
    -------
    Any
        In a graph of TensorFlow 1, the operation that does it.

    Raises
    ------
    tf.errors.InvalidArgumentError
        Ranks have other numbers of variables: on every rank, with the names of those that others lack.
    tf.errors.FailedPreconditionError
        The ranks' variables do not fit together: on every rank.
    """
    given = list(variables)
    with tf.control_dependencies([_as_many(given, process_set)]):
        return _given_to_all(given, root_rank, process_set, inplace=inplace)


def _as_many(variables: list[Any], process_set: ProcessSet) -> Any:
    """Return an operation that fails where another rank has more variables or fewer: those would wait for ever."""
    mine = len(variables)
    bounds = tf.constant([mine, -mine], tf.int32)
    bounds = _allreduce(bounds, name=f"{_NAME}.count", op=Min, ignore_name_scope=True, process_set=process_set)
    least, most = bounds[0], -bounds[1]
    labels = tf.constant([f"{each.name} {tuple(each.shape)}" for each in variables], tf.string)
    data = [_COUNTS, least, "and", most, f". This one has {mine}; others lack:", labels[least:]]
    return tf.raw_ops.Assert(condition=tf.equal(least, most), data=data, summarize=max(mine, 1))


def _given_to_all(given: list[Any], root_rank: int, process_set: ProcessSet, *, inplace: bool) -> Any:
    if not given:
        return None if tf.executing_eagerly() else tf.no_op()
    if inplace:
        done = broadcast_(given, root_rank, name=_NAME, process_set=process_set)
        return None if tf.executing_eagerly() else tf.group(*done)
    if not tf.executing_eagerly():
        return tf.group(
            *[
                _assigned(each, f"{_NAME}.{number}", root_rank, process_set, ignore_name_scope=True)
                for number, each in enumerate(given)
            ]
        )
    for each in given:  # one after the other: one name is enough, and TensorFlow keeps what it has built for each
        try:
            _assigned(each, _NAME, root_rank, process_set)
        except tf.errors.FailedPreconditionError as error:
            error.add_note(f"It is variable {each.name!r}, of shape {tuple(each.shape)} and type {each.dtype} here.")
            raise
    return None


def _assigned(variable: Any, name: str, root_rank: int, process_set: ProcessSet, **how: Any) -> Any:
    value = tf.convert_to_tensor(variable)
    return variable.assign(broadcast(value, root_rank, name=name, process_set=process_set, **how))


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,  # noqa: ARG001 - Horovod's: objects do not pass through TensorFlow here
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank; what the others pass as ``obj`` is ignored.

    Ranks must agree on ``name``.
    """
    return ops.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that does what ``broadcast_object`` does, any number of times."""

    def broadcast_one(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast_one


def allgather_object(
    obj: Any,
    session: Any = None,  # noqa: ARG001 - Horovod's
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return every rank's object, in rank order. Ranks must agree on ``name``; their objects may be of any types."""
    return ops.allgather_object(obj, name, process_set)
