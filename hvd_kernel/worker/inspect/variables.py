"""Variables of a rank, compared and weighed: their summaries, the memory in use, and what explains a lack of it.

A garbage collection on request frees the last failed cell's exception, whose frames hold tensors; the last cell's
value; reference cycles; memory that a framework caches for later tensors; and freed memory that the C library keeps.

Terms.
  facts     type, shape, dtype, device and, of a small plain value, the value: read without running the user's code
  seeds     states of the global random generators, addressed like a variable
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import shared_memory
from hvd_kernel.formatting.units import decimal_size, plural
from hvd_kernel.frameworks import registry
from hvd_kernel.processes import allocator
from hvd_kernel.worker.inspect import digest, name_lookup
from hvd_kernel.worker.telemetry import resident

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

Answer = tuple[dict[str, Any], list[Any]]

SEEDS = "seeds"
READY = {"hvd", "rank", "size", "local_rank", "device"} | {
    "In",
    "Out",
    "exit",
    "quit",
    "get_ipython",
}  # ours, IPython's
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)
_SMALL = (type(None), bool, int, float, complex, str, bytes)
_COUNTED = (dict, list, tuple, set, frozenset, str, bytes)


def table(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Return a row of facts per variable, with digests of those up to ``compare`` bytes if no cell is using them.

    ``names`` selects variables, and may contain chains; without it these are the user's variables, but not modules,
    functions and classes.
    """
    space, busy = dict(control.names), control.busy
    chosen = content["names"] or users(space)
    rows = {}
    for name in chosen:
        try:
            value = name_lookup.resolve(space, name)
        except LookupError:
            continue
        rows[name] = facts(value) | ({} if busy else compared(value, content["compare"]))
    return {"rows": rows, "busy": busy}, []


def parts(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Return the leaves of some variables, None for missing ones. Every byte is read."""
    leaves: dict[str, Any] = {}
    for name in content["names"] or users(control.names):
        exists, value = _find(control, name)
        leaves[name] = [_wire(leaf) for leaf in digest.leaves(value, whole=True)] if exists else None
    return {"parts": leaves}, []


def elements(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Return elements of a numeric leaf as float64; no buffer if it is not numeric."""
    _, value = _find(control, content["name"])
    numbers = digest.numbers(digest.at(value, content["path"]), content["start"], content["stop"])
    return {}, [] if numbers is None else [numbers.tobytes()]


def users(space: Mapping[str, Any]) -> list[str]:
    """Return the names of the user's variables, sorted."""
    return sorted(
        name
        for name, value in space.items()
        if not name.startswith("_") and name not in READY and not issubclass(type(value), _CODE)
    )


def facts(value: Any) -> dict[str, str | int]:
    """Return type, shape, dtype and, of a small value, the value; of a DTensor its layout and local bytes."""
    row: dict[str, str | int] = {"type": type(value).__name__, "shape": "", "dtype": "", "value": ""}
    if type(value) in _SMALL:
        row["value"] = digest.short(value)
    if type(value) in _COUNTED and type(value) is not str:
        row["shape"] = plural(len(value), "item")
    else:
        row.update(registry.first("facts", value) or {})
    return row


def compared(value: Any, at_most: int) -> dict[str, Any]:
    """Return the digest of a value, and whether it is complete; {} if the value is larger than ``at_most`` bytes."""
    try:
        if digest.weigh(value) > at_most:
            return {}
        leaves = digest.leaves(value)
    except Exception as error:  # noqa: BLE001 - a state_dict is the user's code: one that raises is not compared
        return {"digest": "", "sampled": False, "partly": False, "value": f"{type(error).__name__}: {error}"[:80]}
    shards = dict.fromkeys(leaf.shard for leaf in leaves if leaf.shard)
    return {
        "digest": digest.together(leaves),
        "sampled": any(leaf.sampled for leaf in leaves),
        "partly": not all(leaf.digest for leaf in leaves),
        "shards": {shard: digest.together(leaves, shard) for shard in shards},
        "only shards": bool(shards) and all(leaf.shard or leaf.is_frame for leaf in leaves),
    }


def _find(control: Control, name: str) -> tuple[bool, Any]:
    if name in control.names or name != SEEDS:
        try:
            return True, name_lookup.resolve(control.names, name)
        except LookupError:
            return False, None
    return True, seeds()


def seeds() -> dict[str, Any]:
    """Return the states of the global random generators of Python and all imported frameworks."""
    states: dict[str, Any] = {"random": random.getstate()}
    for adapter in registry.in_use():
        states |= adapter.seeds()
    return states


def _wire(leaf: digest.Leaf) -> list[Any]:
    return [list(leaf.path), leaf.digest, leaf.text, leaf.shard]


if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

NAMED = 3
"""Number of variables in the explanation, the largest ones."""

_REFUSALS = (
    "DefaultCPUAllocator",
    "can't allocate memory",
    "Unable to allocate",
)  # in errors of torch and NumPy
_SMALL_BYTES = 1 << 20  # bytes; smaller variables do not explain a lack of memory


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
    return {"type": _described(value), "size": size, "gradients": gradients}


def _described(value: Any) -> str:
    """Return the type of a value; of a distributed tensor, or a model of them, with its whole shape and its layout."""
    with suppress(Exception):  # of a value that the cell is changing
        row = facts(value)
        if "local" in row:
            return f"{row['type']} {row['shape']}, {row['value']}"
    return type(value).__name__


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
            if _size(row) >= _SMALL_BYTES
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
    allocator.trim()
    return {"before": before, "after": resident()}, []
