"""``hvd.elastic``: training that outlives a failure, with TensorFlow's variables, models and optimizers as its state.

::

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state): ...                    # calls state.commit() now and then; a failure goes back to there

    train(state)
"""

from __future__ import annotations

import tensorflow as tf

from hvd_kernel.elastic import (
    Checkpoint,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    HostUpdateResult,
    ObjectState,
    State,
    StepGuard,
    notification_manager,
    run_fn,
)
from hvd_kernel.elastic.run import translating
from hvd_kernel.tensorflow import library
from hvd_kernel.tensorflow.elastic.state import TensorFlowKerasState, TensorFlowState

__all__ = [
    "Checkpoint",
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "StepGuard",
    "TensorFlowKerasState",
    "TensorFlowState",
    "notification_manager",
    "run",
    "run_fn",
]

run = translating((tf.errors.OpError,), library.translated)
