"""The latest cell of this rank, running or ended: for a kernel that attaches to a cluster of an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hvd_kernel.worker import communication

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control


def answer(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return it, and whether communication has to be made anew. Only looks, so it may be urgent."""
    latest = control.latest
    broken = communication.aborted() or bool(latest.ended and latest.ended["aborted"])
    now = {"busy": control.busy, "broken": broken, "prompts": control.prompts.unanswered}
    return asdict(latest) | now, []
