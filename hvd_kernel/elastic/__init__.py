"""Training that survives failures: state with commits, and a decorator that continues from the last commit.

All frontends share this; ``hvd_kernel.torch.elastic`` has the state and the sampler of torch. ``notification_manager``,
a WorkerNotificationManager, notifies the states of a process when hosts are added or removed. The driver of
``hvdrun --min-np``, or the notebook, replaces ranks that die, and adds others.
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
