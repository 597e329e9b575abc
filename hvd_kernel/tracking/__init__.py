"""Experiment tracking: what ``hvd.log`` is given goes to TensorBoard, MLflow, Polyaxon or JSON lines. A shared leaf.

It knows neither ranks' communication nor a notebook: ``hvd_kernel.core.metrics`` reduces over ranks first and has
rank 0 write, ``%hvd track`` chooses and lists. HVD_TRACK's syntax is in ``choice``, the interface of what writes in
``sink``.
"""

from __future__ import annotations

from hvd_kernel.tracking.command import commanded, sentence, tell, tell_fresh
from hvd_kernel.tracking.listing import page
from hvd_kernel.tracking.process import (
    TRACK,
    choose,
    end,
    know_rank,
    outputs,
    rank,
    rank_environment,
    rank_of,
    reset,
    run_id,
    tracker,
)
from hvd_kernel.tracking.sink import Item, Point
from hvd_kernel.tracking.sinks import Tracker, check
from hvd_kernel.tracking.syntax import Choice, absolute, parse

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
    "tell",
    "tell_fresh",
    "tracker",
]
