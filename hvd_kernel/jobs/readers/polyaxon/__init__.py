"""Polyaxon's files: experiments of 0.4 to 0.6, and components of 1.1 with an MPI job."""

from __future__ import annotations

from hvd_kernel.jobs.readers.polyaxon.experiment import matches, read

__all__ = ["matches", "read"]
