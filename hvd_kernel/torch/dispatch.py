"""Dispatch of collectives from torch tensors to the core, shared by all forms of an operation. Each returns a handle.

Operations into new tensors are those of core/collectives; those in place, of gradients, are direct calls of the core.

Terms.
  in place  a trailing underscore: the result overwrites the tensor
  buffer    see memory; on a device ``resuming_stream`` orders an operation in place with torch's work
  group     several tensors that are one operation, all of them or none; its result is a tuple
  waits     see handles: the caller waits next
  fast      an allreduce of plain CPU tensors in one call of the core
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hvd_kernel.core import collectives, handles, ops
from hvd_kernel.core.handles import FastCalls, InOut, Scales
from hvd_kernel.core.ops import wire_name
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.torch.memory import (
    MEMORY,
    NUMBERS,
    Finish,
    Table,
    check_writable,
    number_of,
    reduced_by,
    resuming_stream,
    stage,
    unstage,
    with_device,
)

Tensors = tuple[Tensor, ...]

_FIRST = itemgetter(0)  # the result of an operation on one tensor

_exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
fast = FastCalls(Tensor, Parameter, _exchange, readable=_exchange is not None)  # torch 2.10 and newer


def is_plain(tensor: Any) -> bool:
    """Return whether autograd does not record an operation on the tensor, so that ``fast`` may run it."""
    return type(tensor) is Tensor and tensor.is_cpu and not (tensor.requires_grad and torch.is_grad_enabled())


def are_plain(tensors: Any) -> bool:
    """Return whether all tensors of a list or tuple are plain; False for iterators, which are not read."""
    return type(tensors) in {list, tuple} and all(map(is_plain, tensors))


def _in_place(tensor: Tensor, table: Table) -> tuple[InOut, Tensor]:
    number = number_of(tensor, table)
    buffer = stage(tensor)
    if buffer is not tensor:
        check_writable(tensor)
    pointer = buffer.data_ptr()
    place = (pointer, pointer, buffer.shape, number)
    return (place if buffer.is_cpu else with_device(place, buffer)), buffer


def allreduce_(
    tensor: Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start an allreduce in place."""
    group = 0 if process_set is global_process_set else set_id(process_set, "Allreduce")
    place, buffer = _in_place(tensor, reduced_by(op))
    wire = f"allreduce.{name}" if name else ""

    def finish(_: Any) -> Tensor:
        return unstage(tensor, buffer)

    ordered = finish if buffer.is_cpu else resuming_stream(finish, (buffer,))
    return handles.allreduce_places(wire, (place,), op, scales, ordered, group, waits)


def allreduce(
    tensor: Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start an allreduce into a new tensor."""
    group, wire = set_id(process_set, "Allreduce"), wire_name("allreduce", name)
    return collectives.allreduce(MEMORY, (tensor,), wire, op, scales, group=group, form=_FIRST, waits=waits)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    scales: Scales,
    process_set: ProcessSet,
    *,
    waits: bool = False,
) -> int:
    """Start a grouped allreduce in place."""
    group = set_id(process_set, "Allreduce")
    kept = _group(tensors, "grouped_allreduce")
    pairs = [_in_place(tensor, reduced_by(op)) for tensor in kept]
    buffers = [buffer for _, buffer in pairs]

    def finish(_: Any) -> Tensors:
        return tuple(unstage(tensor, buffer) for tensor, buffer in zip(kept, buffers, strict=True))

    wire, places = wire_name("grouped_allreduce", name), [place for place, _ in pairs]
    return handles.allreduce_places(wire, places, op, scales, ordered(finish, buffers), group, waits)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    scales: Scales,
    process_set: ProcessSet,
    *,
    waits: bool = False,
) -> int:
    """Start a grouped allreduce into new tensors."""
    group, wire = set_id(process_set, "Allreduce"), wire_name("grouped_allreduce", name)
    kept = _group(tensors, "grouped_allreduce")
    return collectives.allreduce(MEMORY, kept, wire, op, scales, group=group, form=tuple, waits=waits)


def allgather(tensor: Tensor, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Start an allgather: a concatenation of rows."""
    group, wire = set_id(process_set, "Allgather"), wire_name("allgather", name)
    _check_rows(tensor)
    return collectives.allgather(MEMORY, (tensor,), wire, group=group, form=_FIRST, waits=waits)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start a grouped allgather: a concatenation of rows of each tensor."""
    group, wire = set_id(process_set, "Allgather"), wire_name("grouped_allgather", name)
    kept = _group(tensors, "grouped_allgather")
    for tensor in kept:
        _check_rows(tensor)
    return collectives.allgather(MEMORY, kept, wire, group=group, form=tuple, waits=waits)


def _check_rows(tensor: Tensor) -> None:
    number_of(tensor, NUMBERS)  # whether it is a tensor
    if not tensor.dim():
        raise IndexError("tuple index out of range: allgather concatenates rows, a 0-dimensional tensor has none.")


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start a broadcast in place."""
    group = set_id(process_set, "Broadcast")
    place, buffer = _in_place(tensor, NUMBERS)
    wire = wire_name("broadcast", name)

    def finish(_: Any) -> Tensor:
        return unstage(tensor, buffer)

    return handles.broadcast_places(wire, (place,), root_rank, ordered(finish, (buffer,)), group, waits)


def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Start a broadcast into a new tensor."""
    group, wire = set_id(process_set, "Broadcast"), wire_name("broadcast", name)
    return collectives.broadcast(MEMORY, (tensor,), wire, root_rank, group=group, form=_FIRST, waits=waits)


def alltoall(tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Start an alltoall; its result is the received rows, and the number of rows from each rank (device of splits)."""
    group, wire = set_id(process_set, "Alltoall"), wire_name("alltoall", name)
    number_of(tensor, NUMBERS)  # whether it is a tensor
    if not tensor.dim():
        raise ValueError("Alltoall does not support scalar inputs")
    rows, device = _splits(splits)
    counts = partial(torch.tensor, dtype=torch.int32, device=device)
    return collectives.alltoall(MEMORY, tensor, wire, rows, group=group, counts=counts, waits=waits)


def _splits(splits: Any) -> tuple[list[int] | None, torch.device]:
    if splits is None:
        return None, torch.device("cpu")
    if not isinstance(splits, Tensor):
        splits = torch.tensor(splits, dtype=torch.int32)
    if splits.dim() != 1:
        raise ValueError("alltoall expects a 1D splits tensor")
    if splits.dtype != torch.int32:
        raise ValueError("alltoall expects splits to contain 32-bit integer elements.")
    return splits.tolist(), splits.device


def reducescatter(
    tensor: Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start a reducescatter: a reduction of which each rank receives its share of the rows."""
    group, wire = set_id(process_set, "Reducescatter"), wire_name("reducescatter", name)
    return collectives.reducescatter(MEMORY, (tensor,), wire, op, scales, group=group, form=_FIRST, waits=waits)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    scales: Scales,
    process_set: ProcessSet,
    *,
    waits: bool = False,
) -> int:
    """Start a grouped reducescatter."""
    group, wire = set_id(process_set, "Reducescatter"), wire_name("grouped_reducescatter", name)
    kept = _group(tensors, "grouped_reducescatter")
    return collectives.reducescatter(MEMORY, kept, wire, op, scales, group=group, form=tuple, waits=waits)


def ordered(finish: Finish, touched: Sequence[Tensor]) -> Finish:
    """Return a finish function that orders the caller's stream after an operation on a device."""
    return finish if touched[0].is_cpu else resuming_stream(finish, touched)


def _group(tensors: Sequence[Tensor], doing: str) -> Tensors:
    kept = tuple(tensors)
    ops.some(kept, doing)
    return kept
