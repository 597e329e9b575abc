"""Training that outlives a failure: state that is committed, and a decorator that goes on from the last commit.

This is what every frontend shares; ``hvd_kernel.torch.elastic`` has the state and the sampler of torch. What tells the
states of a process that hosts come or go is ``notification_manager``, a WorkerNotificationManager.
Ranks that die are replaced, and others added, by the driver of ``hvdrun --min-np`` or by the notebook.
"""

from __future__ import annotations

from hvd_kernel.elastic.checkpoint import Checkpoint
from hvd_kernel.elastic.guard import StepGuard
from hvd_kernel.elastic.object_state import ObjectState
from hvd_kernel.elastic.run import run, run_fn
from hvd_kernel.elastic.state import State
from hvd_kernel.elastic.updates import HostUpdateResult, WorkerNotificationManager, notification_manager
from hvd_kernel.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "Checkpoint",
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "StepGuard",
    "WorkerNotificationManager",
    "notification_manager",
    "run",
    "run_fn",
]
