"""``hvd.elastic``: training that survives a failure, with torch's models, optimizers and samplers as its state.

::

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    @hvd.elastic.run
    def train(state): ...                    # calls state.commit() regularly; a failure restores the last commit

    train(state)

``notification_manager`` notifies the states of this process of added and removed hosts.
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
