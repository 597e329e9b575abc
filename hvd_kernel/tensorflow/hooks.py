"""Global variables of a TensorFlow 1 graph, given to all ranks: by an operation, or by a hook of the session."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_kernel.tensorflow.functions import broadcast_variables

_SessionRunHook: Any = tf.compat.v1.train.SessionRunHook


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that overwrites all global variables of this graph by the root's.

    Raises
    ------
    RuntimeError
        In eager mode, where there are none.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution. "
            "Please use `hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(_SessionRunHook):
    """Gives all ranks the root's variables when the session begins: ``MonitoredTrainingSession(hooks=[...])``.

    Parameters
    ----------
    root_rank
        Whose variables they are.
    device
        Where the operations are placed; "": where TensorFlow likes.
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
        """Run it."""
        session.run(self.bcast_op)
