"""Whole tensors in the notebook from the parts of a DTensor that ranks send. Pure, except that torch is imported.

Terms.
  part  one rank's shard of a DTensor, with its coordinate in the mesh
  copy  all parts that together are the tensor; a mesh with a dimension that replicates the tensor holds several copies
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.protocol.distributed_tensors import Path, TensorPart, is_part, replaced

Values = Mapping[int, Mapping[str, Any]]
"""Rank -> its variables by name."""

Parts = Mapping[tuple[int, ...], TensorPart]
"""The parts of one tensor by their coordinates."""


def not_pulled(path: str, text: str, missing: Sequence[int]) -> str:
    """Return the message for a DTensor without the parts of some ranks."""
    return f"`{path}` cannot be joined without its parts on {rank_list(missing)} ({text}): pull it from all ranks"


def not_fitting(path: str, texts: Sequence[str]) -> str:
    """Return the message for parts that are not of one tensor."""
    return f"`{path}` cannot be joined, as ranks divide it differently ({'; '.join(texts)}): `%hvd check` compares them"


def joined(values: Values) -> dict[int, dict[str, Any]]:
    """Return the variables of ranks with parts replaced by whole tensors; ranks of one copy share one tensor.

    Raises
    ------
    UsageError
        The parts of some ranks are missing, or do not fit together.
    """
    parts: dict[tuple[Any, ...], dict[tuple[int, ...], TensorPart]] = defaultdict(dict)  # by path and mesh

    def add(part: TensorPart, path: Path) -> TensorPart:
        if part.coordinate is not None:
            parts[path, part.mesh][part.coordinate] = part
        return part

    for variables in values.values():
        replaced(dict(variables), is_part, add)
    tensors: dict[tuple[Any, ...], Any] = {}

    def join(part: TensorPart, path: Path) -> Any:
        place = part.coordinate or (0,) * len(part.sizes)
        copy = tuple(at if axis is None else None for axis, at in zip(part.axes, place, strict=True))
        key = path, part.mesh, part.text, copy
        if key not in tensors:
            tensors[key] = _whole(part, parts[path, part.mesh], copy, ".".join(path))
        return tensors[key]

    return {rank: replaced(dict(variables), is_part, join) for rank, variables in values.items()}


def _whole(part: TensorPart, parts: Parts, copy: tuple[int | None, ...], path: str) -> Any:
    """Join the parts of a copy, given by its coordinates along the dimensions of the mesh that replicate."""
    choices = [range(size) if at is None else [at] for at, size in zip(copy, part.sizes, strict=True)]
    rank_at = dict(zip(product(*map(range, part.sizes)), part.mesh, strict=True))
    places = list(product(*choices))
    if missing := [rank_at[place] for place in places if place not in parts]:
        raise UsageError(not_pulled(path, part.text, missing))
    if len(texts := dict.fromkeys(parts[place].text for place in places)) > 1:
        raise UsageError(not_fitting(path, list(texts)))
    concatenate = importlib.import_module("torch").cat
    tensors = [parts[place].local for place in places]
    for axis, choice in zip(reversed(part.axes), reversed(choices), strict=True):
        if axis is not None:  # the last dimension of the mesh has divided the shards of the one before it
            starts = range(0, len(tensors), len(choice))
            tensors = [concatenate(tensors[start : start + len(choice)], axis) for start in starts]
    if tuple(tensors[0].shape) != part.shape:
        raise UsageError(not_fitting(path, [part.text, f"{tuple(tensors[0].shape)} together"]))
    return tensors[0]
