"""``hvd.elastic``: training that outlives a failure, with torch's models, optimizers and samplers as its state.

::

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state): ...                    # calls state.commit() now and then; a failure goes back to there

    train(state)

``notification_manager`` is what tells the states of this process that hosts come or go.
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
    run,
    run_fn,
)
from hvd_kernel.torch.elastic import stored
from hvd_kernel.torch.elastic.sampler import ElasticSampler
from hvd_kernel.torch.elastic.state import TorchState

__all__ = [
    "Checkpoint",
    "ElasticSampler",
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "StepGuard",
    "TorchState",
    "notification_manager",
    "run",
    "run_fn",
]
