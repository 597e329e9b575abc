"""Checks of arguments on one rank, before anything is sent. Each message names cause and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

NOT_A_TENSOR = "{kind} is not a torch.Tensor: use torch.as_tensor(...)."
NOT_DENSE = "The hvd backend takes dense tensors, not one of layout {layout}: send tensor.to_dense()."
NOT_ON_CPU = (
    "The hvd backend takes tensors on the CPU, not on {device}: send tensor.cpu(), or create the group with another "
    "backend, as in new_group(backend='nccl')."
)
OTHER_DTYPE = "{operation}: all tensors must have the same dtype, not {first} and {other}: cast one of them."
OTHER_COUNT = "{operation}: expected {expected} {unit}, but got {count}: pass tensors that match on every rank."
OTHER_RECEIVED = (
    "The ranks sent {received} elements, but the outputs of this rank hold {expected}: pass outputs with the sizes of "
    "the tensors that the ranks send."
)
NO_SUCH_ROOT = "{operation}: rank {root} is not in the group, whose ranks are 0 to {last}."
UNEVEN_ROWS = (
    "all_to_all_single: {rows} rows of the {side} tensor are not divisible by {size} ranks: pass {side}_split_sizes."
)
OTHER_ROWS = "all_to_all_single: {side}_split_sizes={splits} must be {size} numbers whose sum is {rows}, the rows."
NO_TENSORS = "{operation}: the list of tensors is empty: pass at least one tensor."


def check_dense(tensor: Any) -> None:
    """Refuse what is not a dense tensor on the CPU.

    Raises
    ------
    TypeError
        The value is not a tensor.
    ValueError
        The tensor is sparse, nested, or on another device.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(NOT_A_TENSOR.format(kind=type(tensor).__name__))
    if not tensor.is_cpu:
        raise ValueError(NOT_ON_CPU.format(device=tensor.device))
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ValueError(NOT_DENSE.format(layout="nested" if tensor.is_nested else tensor.layout))


def check_same_dtype(operation: str, tensors: Sequence[Any]) -> None:
    """Refuse an empty list, and tensors of different types."""
    if not tensors:
        raise ValueError(NO_TENSORS.format(operation=operation))
    for tensor in tensors:
        check_dense(tensor)
        if tensor.dtype is not tensors[0].dtype:
            raise ValueError(OTHER_DTYPE.format(operation=operation, first=tensors[0].dtype, other=tensor.dtype))


def check_count(operation: str, count: int, expected: int, unit: str = "elements") -> None:
    """Refuse a number of tensors or elements that does not match the others."""
    if count != expected:
        raise ValueError(OTHER_COUNT.format(operation=operation, expected=expected, unit=unit, count=count))


def check_received(received: int | list[int], expected: int | list[int]) -> None:
    """Refuse outputs that do not hold what the ranks have sent: in all, or from each rank."""
    if received != expected:
        raise ValueError(OTHER_RECEIVED.format(received=received, expected=expected))


def check_root(operation: str, root: int, size: int) -> None:
    """Refuse a root that is not a rank of the group."""
    if not 0 <= root < size:
        raise ValueError(NO_SUCH_ROOT.format(operation=operation, root=root, last=size - 1))


def check_splits(tensor: Tensor, splits: Sequence[int], size: int, side: str) -> Sequence[int]:
    """Return how many rows of a tensor belong to each rank; without splits equally many.

    Raises
    ------
    ValueError
        The rows cannot be divided, or the splits do not match them.
    """
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits:
        if rows % size:
            raise ValueError(UNEVEN_ROWS.format(rows=rows, side=side, size=size))
        return [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(OTHER_ROWS.format(side=side, splits=list(splits), size=size, rows=rows))
    return splits
