"""Job specifications: read from a platform's file, command line or environment, and written for another platform.

Readers are pure functions that return a ``JobSpec``, writers pure functions of one; no process is started.
"""

from __future__ import annotations

from hvd_kernel.jobs.spec import (
    Bounds,
    JobError,
    JobSpec,
    PlatformField,
    RendezvousAddress,
    Replica,
    Resources,
    Variable,
)

__all__ = ["Bounds", "JobError", "JobSpec", "PlatformField", "RendezvousAddress", "Replica", "Resources", "Variable"]
