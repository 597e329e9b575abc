"""Memory of a rank: what fills it, what is said where there was no more, and garbage collection on wish.

What goes back to the system then: the last failed cell's exception, whose frames hold tensors; the last cell's value;
objects in circles; memory that a framework keeps for its next tensors; and what the C library keeps of what was freed.
"""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import shared_memory
from hvd_kernel.formatting.units import size_of
from hvd_kernel.frameworks import registry
from hvd_kernel.worker.inspect import digest
from hvd_kernel.worker.inspect.variable_summary import users
from hvd_kernel.worker.telemetry import resident

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

NAMED = 3
"""Variables in the sentence, the largest ones."""

_REFUSALS = (
    "DefaultCPUAllocator",
    "can't allocate memory",
    "Unable to allocate",
)  # in errors that torch and NumPy raise
_SMALL = 1 << 20  # bytes: no smaller variable explains that there is no memory


def held(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Answer with what fills this rank: kinds of memory, and variables with their bytes and where they were made."""
    kinds, unseen = _kinds()
    return {"names": _variables(control), "kinds": kinds, "unseen": unseen}, []


def _variables(control: Control) -> dict[str, dict[str, Any]]:
    places = control.origins.places()
    return {name: _weighed(control.names[name]) | {"made": places.get(name, "")} for name in users(control.names)}


def _kinds() -> tuple[dict[str, int], list[str]]:
    """Return bytes by what they are for: all that is resident, all tensors, parts of these; and what is not seen."""
    found, unseen = Counter({"resident": resident(), "tensors": 0}), []
    for adapter in registry.in_use():
        alive = adapter.alive_bytes()
        found.update(alive)
        unseen += [adapter.unseen] if adapter.unseen and alive.get("tensors") else []
    found["shared buckets"] = shared_memory.held()
    return {kind: nbytes for kind, nbytes in found.items() if nbytes or kind == "tensors"}, unseen


def _weighed(value: Any) -> dict[str, Any]:
    size = gradients = 0
    with suppress(Exception):  # a state_dict is the user's code: one that raises is not counted
        size = digest.weigh(value)
        gradients = sum(adapter.gradient_bytes(value) for adapter in registry.in_use())
    return {"type": type(value).__name__, "size": size, "gradients": gradients}


def explanation(control: Control, error: BaseException) -> str:
    """Say what fills this rank where an error means that there was no memory; "" for any other.

    Example: ``rank 0 holds 3.1 GB: tensors 2.9 GB (gradients 400 MB); largest: x 2 GB (cell 3:2)``.
    """
    if not _is_refusal(error):
        return ""
    with suppress(Exception):  # there is little memory: what this needs may be refused too
        registry.settle()  # of what this cell has imported
        (kinds, _), names = _kinds(), _variables(control)
        parts = [f"{kind} {size_of(kinds[kind])}" for kind in kinds if kind not in {"resident", "tensors"}]
        inside = f" ({', '.join(parts)})" if parts else ""
        ordered = sorted(names.items(), key=lambda item: -_size(item[1]))
        largest = [
            f"{name} {size_of(_size(each))}" + (f" ({each['made']})" if each["made"] else "")
            for name, each in ordered[:NAMED]
            if _size(each) >= _SMALL
        ]
        listed = f"; largest: {', '.join(largest)}" if largest else ""
        tensors = f"tensors {size_of(kinds['tensors'])}{inside}" if kinds["tensors"] else "no tensors"
        return f"rank {control.rank} holds {size_of(kinds['resident'])}: {tensors}{listed}"
    return ""


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _REFUSALS)


def _size(each: Mapping[str, Any]) -> int:
    return int(each["size"] + each["gradients"])


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
