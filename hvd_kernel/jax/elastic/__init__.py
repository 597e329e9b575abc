"""``hvd.elastic``: training that survives a failure, with JAX's parameters as its state.

::

    state = hvd.elastic.JaxState(params=params, opt_state=opt_state, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state): ...                    # calls state.commit() regularly; a failure restores the last commit

    train(state)
"""

from __future__ import annotations

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
from hvd_kernel.jax import library
from hvd_kernel.jax.elastic.state import JaxState

__all__ = [
    "Checkpoint",
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "JaxState",
    "ObjectState",
    "State",
    "StepGuard",
    "notification_manager",
    "run",
    "run_fn",
]

run = translating(library.RAISED, library.translated)
