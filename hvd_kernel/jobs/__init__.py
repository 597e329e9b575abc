"""Job specifications: read from any platform's file, line or environment, written for any other.

A reader is a pure function to a ``JobSpec``, a writer a pure function from one; nothing here starts a process.
"""

from __future__ import annotations

from hvd_kernel.jobs.spec import Bounds, JobError, JobSpec, RendezvousAddress, Replica, Resources, Variable

__all__ = ["Bounds", "JobError", "JobSpec", "RendezvousAddress", "Replica", "Resources", "Variable"]
