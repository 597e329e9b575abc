"""Pending operations of a rank, and the one in which it waits. Any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_kernel.core.stacks import call_stack
from hvd_kernel.protocol.messages import Pending

if TYPE_CHECKING:
    from hvd_kernel._native import Engine

MAX_PENDING = 16
"""In one answer."""


def pending(engine: Engine | None) -> list[Pending]:
    """Return the operations that are not done here, oldest first; rank 0 knows the others' too."""
    found = engine.pending() if engine is not None else []
    return [Pending(str(each["name"]), _seconds(each), _missing(each)) for each in sorted(found, key=_seconds)[::-1]]


def waiting_for(engine: Engine | None) -> str:
    """Return the oldest of this rank's own operations while its main thread is inside the core; "" when it is not."""
    if engine is None or not call_stack.inside_core():
        return ""
    return next((each.name for each in pending(engine) if engine.rank not in each.missing), "")


def _missing(operation: dict[str, object]) -> tuple[int, ...]:
    ranks = operation.get("missing")
    return tuple(ranks) if isinstance(ranks, list) else ()


def _seconds(operation: dict[str, object]) -> float:
    seconds = operation["seconds"]
    return seconds if isinstance(seconds, float) else 0.0
