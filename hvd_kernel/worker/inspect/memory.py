"""Garbage collection of a rank on wish: what nothing needs any more goes back to the system.

That is: the last failed cell's exception, whose frames hold tensors; the last cell's value; objects in circles; memory
that a framework keeps for its next tensors; and what the C library keeps of what was freed.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hvd_kernel.frameworks import registry
from hvd_kernel.worker.telemetry import resident

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control


def collect(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Answer with the resident bytes of this rank before and after."""
    before = resident()
    control.forget()
    gc.collect()
    for adapter in registry.in_use():
        adapter.free_unused()
    with suppress(AttributeError):  # it is glibc's
        ctypes.CDLL(None).malloc_trim(0)
    return {"before": before, "after": resident()}, []
