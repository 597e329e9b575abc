"""Summary of the user's variables on this rank: facts, and digests by which the notebook compares ranks.

Terms.
  facts     type, shape, dtype, device and, of a small plain value, the value: read without running the user's code
  seeds     states of the global random generators, addressed like a variable
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from hvd_kernel.formatting.units import plural
from hvd_kernel.frameworks import registry
from hvd_kernel.worker.inspect import digest, name_lookup

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


def facts(value: Any) -> dict[str, str]:
    """Return type, shape, dtype and, of a small value, the value."""
    row = {"type": type(value).__name__, "shape": "", "dtype": "", "value": ""}
    if type(value) in _SMALL:
        row["value"] = digest.short(value)
    if type(value) in _COUNTED and type(value) is not str:
        row["shape"] = plural(len(value), "item")
    else:
        row |= registry.first("facts", value) or {}
    return row


def compared(value: Any, at_most: int) -> dict[str, Any]:
    """Return the digest of a value, and whether it is complete; {} if the value is larger than ``at_most`` bytes."""
    try:
        if digest.weigh(value) > at_most:
            return {}
        leaves = digest.leaves(value)
    except Exception as error:  # noqa: BLE001 - a state_dict is the user's code: one that raises is not compared
        return {"digest": "", "sampled": False, "partly": False, "value": f"{type(error).__name__}: {error}"[:80]}
    return {
        "digest": digest.together(leaves),
        "sampled": any(leaf.sampled for leaf in leaves),
        "partly": not all(leaf.digest and not leaf.shard for leaf in leaves),
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
