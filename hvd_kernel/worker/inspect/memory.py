"""Memory of a rank: what fills it, and garbage collection on wish.

What goes back to the system then: the last failed cell's exception, whose frames hold tensors; the last cell's value;
objects in circles; memory that a framework keeps for its next tensors; and what the C library keeps of what was freed.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hvd_kernel.frameworks import registry
from hvd_kernel.worker.inspect import digest
from hvd_kernel.worker.inspect.variable_summary import users
from hvd_kernel.worker.telemetry import resident

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control


def held(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Answer with what fills this rank: its variables with their bytes, all tensors, and what is resident."""
    names = {name: _weighed(control.names[name]) for name in users(control.names)}
    tensors = sum(adapter.alive_bytes() for adapter in registry.in_use())
    return {"names": names, "tensors": tensors, "resident": resident()}, []


def _weighed(value: Any) -> dict[str, Any]:
    size = gradients = 0
    with suppress(Exception):  # a state_dict is the user's code: one that raises is not counted
        size = digest.weigh(value)
        gradients = sum(adapter.gradient_bytes(value) for adapter in registry.in_use())
    return {"type": type(value).__name__, "size": size, "gradients": gradients}


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
