"""Checkpoints of an elastic job: what is committed goes to disk too, and a job that has lost all ranks resumes."""

from __future__ import annotations

from hvd_kernel.elastic.checkpoint.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
