"""Memory of a rank: its use, the explanation of out-of-memory errors, and garbage collection on request.

A collection frees the last failed cell's exception, whose frames hold tensors; the last cell's value; reference cycles;
memory that a framework caches for later tensors; and freed memory that the C library keeps.
"""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import shared_memory
from hvd_kernel.formatting.units import decimal_size
from hvd_kernel.frameworks import registry
from hvd_kernel.worker.inspect import digest
from hvd_kernel.worker.inspect.variable_summary import users
from hvd_kernel.worker.telemetry import resident

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

NAMED = 3
"""Number of variables in the explanation, the largest ones."""

_REFUSALS = (
    "DefaultCPUAllocator",
    "can't allocate memory",
    "Unable to allocate",
)  # in errors of torch and NumPy
_SMALL = 1 << 20  # bytes; smaller variables do not explain a lack of memory


def held(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Answer the memory use of this rank: kinds of memory, and variables with their bytes and origins."""
    kinds, unseen = _kinds()
    return {"names": _variables(control), "kinds": kinds, "unseen": unseen}, []


def _variables(control: Control) -> dict[str, dict[str, Any]]:
    places = control.origins.places()
    return {name: _weighed(control.names[name]) | {"made": places.get(name, "")} for name in users(control.names)}


def _kinds() -> tuple[dict[str, int], list[str]]:
    """Return bytes by kind: resident, tensors, and parts of these; and the kinds that cannot be measured."""
    kinds, unseen = Counter({"resident": resident(), "tensors": 0}), []
    for adapter in registry.in_use():
        alive = adapter.alive_bytes()
        kinds.update(alive)
        unseen += [adapter.unseen] if adapter.unseen and alive.get("tensors") else []
    kinds["shared buckets"] = shared_memory.held()
    return {kind: nbytes for kind, nbytes in kinds.items() if nbytes or kind == "tensors"}, unseen


def _weighed(value: Any) -> dict[str, Any]:
    size = gradients = 0
    with suppress(Exception):  # a state_dict is the user's code: one that raises is not counted
        size = digest.weigh(value)
        gradients = sum(adapter.gradient_bytes(value) for adapter in registry.in_use())
    return {"type": type(value).__name__, "size": size, "gradients": gradients}


def explanation(control: Control, error: BaseException) -> str:
    """Return the memory use of this rank for an out-of-memory error, "" for any other error.

    Example: ``rank 0 holds 3.1 GB: tensors 2.9 GB (gradients 400 MB); largest: x 2 GB (cell 3:2)``.
    """
    if not _is_refusal(error):
        return ""
    with suppress(Exception):  # memory is short: these allocations may fail too
        registry.import_adapters()  # of frameworks that this cell has imported
        (kinds, _), names = _kinds(), _variables(control)
        parts = [f"{kind} {decimal_size(kinds[kind])}" for kind in kinds if kind not in {"resident", "tensors"}]
        inside = f" ({', '.join(parts)})" if parts else ""
        ordered = sorted(names.items(), key=lambda item: -_size(item[1]))
        largest = [
            f"{name} {decimal_size(_size(row))}" + (f" ({row['made']})" if row["made"] else "")
            for name, row in ordered[:NAMED]
            if _size(row) >= _SMALL
        ]
        listed = f"; largest: {', '.join(largest)}" if largest else ""
        tensors = f"tensors {decimal_size(kinds['tensors'])}{inside}" if kinds["tensors"] else "no tensors"
        return f"rank {control.rank} holds {decimal_size(kinds['resident'])}: {tensors}{listed}"
    return ""


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _REFUSALS)


def _size(row: Mapping[str, Any]) -> int:
    return int(row["size"] + row["gradients"])


def collect(control: Control, _content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Collect garbage; answer the resident bytes of this rank before and after."""
    before = resident()
    control.forget()
    gc.collect()
    for adapter in registry.in_use():
        adapter.free_unused()
    with suppress(AttributeError):  # it is glibc's
        ctypes.CDLL(None).malloc_trim(0)
    return {"before": before, "after": resident()}, []
