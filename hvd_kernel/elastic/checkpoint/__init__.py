"""Checkpoints of an elastic job: commits are also stored on disk, and a job that has lost all ranks resumes."""

from __future__ import annotations

from hvd_kernel.elastic.checkpoint.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
