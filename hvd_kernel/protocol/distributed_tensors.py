"""DTensors in values that travel between processes: sent in parts and joined, or refused by name.

A DTensor pickles as the local tensor of the process that sends it, so its reader would take one shard for the whole.
`%hvdpull` fetches each rank's shard (``divided``), and the notebook joins them without a collective. All other pickles
send a DTensor as an ordinary tensor if the sender holds all of it, and refuse it otherwise (``reduced``). torch is
found by name, because a notebook's process may lack it.

Terms.
  part        one rank's shard of a DTensor, with its coordinate in the mesh
  containers  dict, list and tuple, of which a ``state_dict`` consists; DTensors in other objects are refused
"""

from __future__ import annotations

import importlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from copy import copy as shallow_copy
from dataclasses import dataclass
from typing import Any

from hvd_kernel.protocol import modules

REMEDY = "`.full_tensor()` in a cell of all ranks returns all of it, torch.distributed.checkpoint saves and loads it"
OF_MODULE = (
    "fully_shard divides its parameters over the ranks, and no rank holds all of them: `%hvdpull` of its state_dict() "
    "joins them, torch.distributed.checkpoint saves and loads it"
)

LOCAL = "to_local()"
"""Part of the path to this rank's shard of a DTensor, in comparisons of ranks."""

_MAPPINGS = (dict, OrderedDict, defaultdict)
_MAX_DEPTH = 40

Path = tuple[str, ...]
"""Keys and indices of containers, from the outermost one; the first is the name of a variable."""


def not_complete(text: str) -> str:
    """Return the message for a DTensor of which the sender holds a part."""
    return f"{text} is divided over the ranks, and each holds only its part: {REMEDY}"


def is_distributed(value: Any) -> bool:
    """Return whether a value is a DTensor."""
    tensors = _tensors()
    return tensors is not None and issubclass(type(value), tensors.DTensor)


def _tensors() -> Any:
    """Return torch's module of DTensors; None if it has not been imported."""
    candidates = map(modules.loaded, ("torch.distributed.tensor", "torch.distributed._tensor"))  # _tensor: before 2.5
    return next((module for module in candidates if hasattr(module, "DTensor")), None)


def described(tensor: Any) -> str:
    """Return the description of a DTensor, equal on ranks that divide it in the same way.

    Example: ``DTensor float32 (8, 8), Shard(dim=0) on mesh (4)``.
    """
    dtype = f"{tensor.dtype}".removeprefix("torch.")
    return f"DTensor {dtype} {tuple(tensor.shape)}, {layout(tensor)}"


def layout(tensor: Any) -> str:
    """Return placements and mesh of a DTensor: ``Replicate(), Shard(dim=0) on mesh (dp=2, tp=2)``."""
    mesh = tensor.device_mesh
    sizes = [str(size) for size in mesh.shape]
    if mesh.mesh_dim_names:
        sizes = [f"{name}={size}" for name, size in zip(mesh.mesh_dim_names, sizes, strict=True)]
    return f"{', '.join(map(repr, tensor.placements))} on mesh ({', '.join(sizes)})"


def reduced(value: Any) -> Any:
    """Return how pickle rebuilds a DTensor that this process holds completely: as an ordinary tensor; else None.

    Raises
    ------
    TypeError
        This process holds a part of the tensor; or the value is a model of ``fully_shard``.
    """
    if is_distributed(value):
        if not _is_complete(value):
            raise TypeError(not_complete(described(value)))
        local, parameter = value.detach().to_local(), importlib.import_module("torch").nn.Parameter
        return (parameter, (local, value.requires_grad)) if isinstance(value, parameter) else (_itself, (local,))
    if issubclass(type(value), getattr(modules.loaded("torch.distributed.fsdp"), "FSDPModule", ())):
        raise TypeError(OF_MODULE)
    return None


def _is_complete(tensor: Any) -> bool:
    mesh = tensor.device_mesh
    return mesh.get_coordinate() is not None and all(
        placement.is_replicate() or (placement.is_shard() and size == 1)
        for placement, size in zip(tensor.placements, mesh.shape, strict=True)
    )


def _itself(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class TensorPart:
    """One rank's shard of a DTensor."""

    text: str  # of the DTensor: ``described``
    shape: tuple[int, ...]  # of the DTensor
    mesh: tuple[int, ...]  # global ranks, in the order of their coordinates
    sizes: tuple[int, ...]  # of the dimensions of the mesh
    axes: tuple[int | None, ...]  # by dimension of the mesh: the axis of the tensor that it shards; None: it replicates
    coordinate: tuple[int, ...] | None  # None outside the mesh
    local: Any  # an ordinary tensor


def is_part(value: Any) -> bool:
    """Return whether a value is a part, as ``divided`` returns it."""
    return isinstance(value, TensorPart)


def divided(value: Any) -> tuple[Any, bool]:
    """Return a value with the DTensors in its containers replaced by parts, and whether there are any.

    Raises
    ------
    TypeError
        A DTensor is a partial sum, or sharded in an order that only torch can undo.
    """
    if _tensors() is None:
        return value, False
    parts = replaced(value, is_distributed, _part)
    return parts, parts is not value


def _part(tensor: Any, path: Path) -> TensorPart:
    mesh, placements = tensor.device_mesh, tensor.placements
    shard = _tensors().Shard
    if not all(placement.is_replicate() or type(placement) is shard for placement in placements):
        raise TypeError(f"`{'.'.join(path)}` cannot be sent: {not_complete(described(tensor))}")
    place = mesh.get_coordinate()
    return TensorPart(
        described(tensor),
        tuple(tensor.shape),
        tuple(mesh.mesh.flatten().tolist()),
        tuple(mesh.shape),
        tuple(None if placement.is_replicate() else placement.dim for placement in placements),
        None if place is None else tuple(place),
        tensor.detach().to_local(),
    )


def replaced(
    value: Any,
    matches: Callable[[Any], bool],
    replace: Callable[[Any, Path], Any],
    path: Path = (),
    above: frozenset[int] = frozenset(),
) -> Any:
    """Return a value with the matching objects in its containers replaced; the value itself if nothing matches."""
    if matches(value):
        return replace(value, path)
    is_mapping = type(value) in _MAPPINGS
    is_sequence = type(value) in {list, tuple} or (isinstance(value, tuple) and hasattr(value, "_make"))
    if not (is_mapping or is_sequence) or id(value) in above or len(above) > _MAX_DEPTH:
        return value
    items = list(value.items() if is_mapping else enumerate(value))
    children = [
        replaced(child, matches, replace, (*path, key if type(key) is str else repr(key)), above | {id(value)})
        for key, child in items
    ]
    if all(new is old for new, (_, old) in zip(children, items, strict=True)):
        return value
    if isinstance(value, tuple):
        return type(value)._make(children) if hasattr(value, "_make") else tuple(children)
    changed = shallow_copy(value)  # with the attributes of a ``state_dict``
    for new, (key, _) in zip(children, items, strict=True):
        changed[key] = new
    return changed
