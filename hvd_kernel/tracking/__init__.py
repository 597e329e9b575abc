"""Experiment tracking: ``hvd.log`` writes to TensorBoard, MLflow, Polyaxon or JSON lines.

This package uses neither the ranks' communication nor the notebook: ``hvd_kernel.core.metrics`` reduces values over the
ranks, and rank 0 writes them; ``%hvd track`` selects the targets and lists runs. The syntax of HVD_TRACK is in
``syntax``, the interface of writers in ``sink``.
"""

from __future__ import annotations

from hvd_kernel.tracking.listing import page
from hvd_kernel.tracking.process import (
    TRACK,
    choose,
    commanded,
    copy_run,
    end,
    know_rank,
    outputs,
    rank,
    rank_environment,
    rank_of,
    reset,
    run_id,
    sentence,
    start_run,
    tracker,
)
from hvd_kernel.tracking.sink import Choice, Item, Point, absolute, parse
from hvd_kernel.tracking.sinks import Tracker, check

__all__ = [
    "TRACK",
    "Choice",
    "Item",
    "Point",
    "Tracker",
    "absolute",
    "check",
    "choose",
    "commanded",
    "copy_run",
    "end",
    "know_rank",
    "outputs",
    "page",
    "parse",
    "rank",
    "rank_environment",
    "rank_of",
    "reset",
    "run_id",
    "sentence",
    "start_run",
    "tracker",
]
