"""Broadcast of variables and objects. Horovod's signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from hvd_kernel.core import ops
from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.tensorflow.mpi_ops import Min, _allreduce, broadcast, broadcast_

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]

_SessionRunHook: Any = tf.compat.v1.train.SessionRunHook
_NAME = "broadcast_variables"
_COUNTS = "Ranks give different numbers of variables to broadcast_variables, between"


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Overwrite variables with the root's: usually ``model.variables``, then those of the optimizer.

    Parameters
    ----------
    variables
        The same number on all ranks, of the same shapes and types, in the same order.
    root_rank
        A global rank, also in a process set.
    inplace
        Use one operation for all of them, which TensorFlow may run in their memory.

    Returns
    -------
    Any
        In a graph of TensorFlow 1, the operation to run.

    Raises
    ------
    tf.errors.InvalidArgumentError
        On every rank: the ranks pass different numbers of variables; the message names those that other ranks lack.
    tf.errors.FailedPreconditionError
        On every rank: the variables of the ranks differ in shape or type.
    """
    listed = list(variables)
    with tf.control_dependencies([_check_count(listed, process_set)]):
        return _broadcast(listed, root_rank, process_set, inplace=inplace)


def _check_count(variables: list[Any], process_set: ProcessSet) -> Any:
    """Return an operation that fails if the ranks have different numbers of variables, which would wait forever."""
    count = len(variables)
    bounds = tf.constant([count, -count], tf.int32)
    bounds = _allreduce(bounds, name=f"{_NAME}.count", op=Min, ignore_name_scope=True, process_set=process_set)
    least, most = bounds[0], -bounds[1]
    labels = tf.constant([f"{variable.name} {tuple(variable.shape)}" for variable in variables], tf.string)
    data = [_COUNTS, least, "and", most, f". This one has {count}; others lack:", labels[least:]]
    return tf.raw_ops.Assert(condition=tf.equal(least, most), data=data, summarize=max(count, 1))


def _broadcast(variables: list[Any], root_rank: int, process_set: ProcessSet, *, inplace: bool) -> Any:
    if not variables:
        return None if tf.executing_eagerly() else tf.no_op()
    if inplace:
        assigned = broadcast_(variables, root_rank, name=_NAME, process_set=process_set)
        return None if tf.executing_eagerly() else tf.group(*assigned)
    if not tf.executing_eagerly():
        return tf.group(
            *[
                _assign(variable, f"{_NAME}.{number}", root_rank, process_set, ignore_name_scope=True)
                for number, variable in enumerate(variables)
            ]
        )
    for variable in variables:  # sequentially, under one name: TensorFlow keeps what it builds for every name
        try:
            _assign(variable, _NAME, root_rank, process_set)
        except tf.errors.FailedPreconditionError as error:
            shape = tuple(variable.shape)
            error.add_note(f"It is variable {variable.name!r}, of shape {shape} and type {variable.dtype} here.")
            raise
    return None


def _assign(variable: Any, name: str, root_rank: int, process_set: ProcessSet, **options: Any) -> Any:
    value = tf.convert_to_tensor(variable)
    return variable.assign(broadcast(value, root_rank, name=name, process_set=process_set, **options))


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that overwrites all global variables of this graph of TensorFlow 1 with the root's.

    Raises
    ------
    RuntimeError
        In eager mode, which has no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. "
            "Please use `hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(_SessionRunHook):
    """Broadcasts the root's variables when the session starts: ``MonitoredTrainingSession(hooks=[...])``.

    Parameters
    ----------
    root_rank
        The rank whose variables are sent.
    device
        Device of the operations; "": TensorFlow's choice.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Build the operation, once per graph."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002 - of TensorFlow's interface
        """Run the operation."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,  # noqa: ARG001 - Horovod's: objects do not pass through TensorFlow here
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank; ``obj`` of other ranks is ignored.

    Ranks must agree on ``name``.
    """
    return ops.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that calls ``broadcast_object`` with these arguments."""

    def broadcast_one(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast_one


def allgather_object(
    obj: Any,
    session: Any = None,  # noqa: ARG001 - Horovod's
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all ranks, in rank order. Ranks must agree on ``name``; types of objects may differ."""
    return ops.allgather_object(obj, name, process_set)
