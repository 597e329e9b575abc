"""Dispatch of collectives from torch tensors to the core: what all forms of an operation share. Each returns a handle.

Terms.
  in place  a trailing underscore: the result is written over the tensor
  buffer    see staging; on a device the operation is ordered with torch's work there by ``behind``, see devices
  group     several tensors that are one operation, all or nothing; its result is a tuple
  waits     see handles: the caller waits next
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core import handles, ops
from hvd_kernel.core.handles import InOut, Scales
from hvd_kernel.core.ops import wire_name
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import SCATTERED, check_op
from hvd_kernel.torch.devices import Finish, behind, with_device
from hvd_kernel.torch.staging import (
    NUMBERS,
    REDUCED,
    Table,
    check_writable,
    from_buffer,
    number_of,
    on_device_of,
    place_of,
    stage,
    unstage,
)

Tensors = tuple[Tensor, ...]


def _reduced(op: int) -> Table:
    check_op(op)
    return REDUCED[op]


def _in_place(tensor: Tensor, table: Table) -> tuple[InOut, Tensor]:
    number = number_of(tensor, table)
    buffer = stage(tensor)
    if buffer is not tensor:
        check_writable(tensor)
    pointer = buffer.data_ptr()
    place = (pointer, pointer, buffer.shape, number)
    return (place if buffer.is_cpu else with_device(place, buffer)), buffer


def _out_of_place(tensor: Tensor, table: Table) -> tuple[InOut, Tensor, Tensor]:
    number = number_of(tensor, table)
    buffer = stage(tensor)
    output = torch.empty_like(buffer)
    place = (buffer.data_ptr(), output.data_ptr(), buffer.shape, number)
    return (place if buffer.is_cpu else with_device(place, buffer)), buffer, output


def allreduce_(
    tensor: Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """In place."""
    group = 0 if process_set is global_process_set else set_id(process_set, "Allreduce")
    place, buffer = _in_place(tensor, _reduced(op))
    wire = f"allreduce.{name}" if name else ""

    def finish(_: Any) -> Tensor:
        return unstage(tensor, buffer)

    ordered = finish if buffer.is_cpu else behind(finish, (buffer,))
    return handles.allreduce_places(wire, (place,), op, scales, ordered, group, waits)


def allreduce(
    tensor: Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Into a new tensor."""
    group = set_id(process_set, "Allreduce")
    place, buffer, output = _out_of_place(tensor, _reduced(op))
    finish = _giving(tensor, buffer, output)
    return handles.allreduce_places(wire_name("allreduce", name), (place,), op, scales, finish, group, waits)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    scales: Scales,
    process_set: ProcessSet,
    *,
    waits: bool = False,
) -> int:
    """In place."""
    group = set_id(process_set, "Allreduce")
    kept = _group(tensors, "grouped_allreduce")
    pairs = [_in_place(tensor, _reduced(op)) for tensor in kept]
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
    """Into new tensors."""
    group = set_id(process_set, "Allreduce")
    kept = _group(tensors, "grouped_allreduce")
    made = [_out_of_place(tensor, _reduced(op)) for tensor in kept]
    places, finish = [place for place, _, _ in made], _giving_all(kept, made)
    return handles.allreduce_places(wire_name("grouped_allreduce", name), places, op, scales, finish, group, waits)


def allgather(tensor: Tensor, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Concatenate rows."""
    group = set_id(process_set, "Allgather")
    place, buffer = _rows(tensor)

    def finish(outcome: Any, _held: Tensor = buffer) -> Tensor:
        return from_buffer(outcome.buffers[0], tensor.device)

    wire = wire_name("allgather", name)
    return handles.allgather_places(wire, (place,), ordered(finish, (buffer,)), group, waits=waits)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Concatenate rows, of each tensor."""
    group = set_id(process_set, "Allgather")
    kept = _group(tensors, "grouped_allgather")
    made = [_rows(tensor) for tensor in kept]
    buffers = [buffer for _, buffer in made]

    def finish(outcome: Any, _held: Any = buffers) -> Tensors:
        return tuple(from_buffer(one, tensor.device) for one, tensor in zip(outcome.buffers, kept, strict=True))

    wire, places = wire_name("grouped_allgather", name), [place for place, _ in made]
    return handles.allgather_places(wire, places, ordered(finish, buffers), group, waits=waits)


def _rows(tensor: Tensor) -> tuple[Any, Tensor]:
    number = number_of(tensor, NUMBERS)
    if not tensor.dim():
        raise IndexError("tuple index out of range: allgather concatenates rows, a 0-dimensional tensor has none.")
    buffer = stage(tensor)
    return place_of(buffer, number), buffer


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """In place."""
    group = set_id(process_set, "Broadcast")
    place, buffer = _in_place(tensor, NUMBERS)
    wire = wire_name("broadcast", name)

    def finish(_: Any) -> Tensor:
        return unstage(tensor, buffer)

    return handles.broadcast_places(wire, (place,), root_rank, ordered(finish, (buffer,)), group, waits)


def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Into a new tensor."""
    group = set_id(process_set, "Broadcast")
    place, buffer, output = _out_of_place(tensor, NUMBERS)
    finish = _giving(tensor, buffer, output)
    return handles.broadcast_places(wire_name("broadcast", name), (place,), root_rank, finish, group, waits)


def alltoall(tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Send rows to every rank; the result is what came, and how many rows came from each rank (where ``splits`` is)."""
    group = set_id(process_set, "Alltoall")
    number = number_of(tensor, NUMBERS)
    if not tensor.dim():
        raise ValueError("Alltoall does not support scalar inputs")
    counts, device = _splits(splits)
    buffer = stage(tensor)

    def finish(outcome: Any, _held: Tensor = buffer) -> tuple[Tensor, Tensor]:
        received = torch.tensor(outcome.sizes, dtype=torch.int32, device=device)
        return from_buffer(outcome.buffers[0], tensor.device), received

    wire, place = wire_name("alltoall", name), place_of(buffer, number)
    return handles.alltoall_place(wire, place, counts, ordered(finish, (buffer,)), group, waits=waits)


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
    """Reduce, and keep own rows."""
    group = set_id(process_set, "Reducescatter")
    place, buffer, output = _share(tensor, op, process_set)
    finish = _giving(tensor, buffer, output)
    return handles.reducescatter_places(wire_name("reducescatter", name), (place,), op, scales, finish, group, waits)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    scales: Scales,
    process_set: ProcessSet,
    *,
    waits: bool = False,
) -> int:
    """Reduce, and keep own rows of each tensor."""
    group = set_id(process_set, "Reducescatter")
    kept = _group(tensors, "grouped_reducescatter")
    made = [_share(tensor, op, process_set) for tensor in kept]
    places, finish = [place for place, _, _ in made], _giving_all(kept, made)
    return handles.reducescatter_places(
        wire_name("grouped_reducescatter", name), places, op, scales, finish, group, waits
    )


def _share(tensor: Tensor, op: int, process_set: ProcessSet) -> tuple[InOut, Tensor, Tensor]:
    number = number_of(tensor, _reduced(op) if op in SCATTERED else NUMBERS)
    buffer = stage(tensor)
    output = torch.empty(ops.share_of(buffer.shape, process_set), dtype=buffer.dtype, device=buffer.device)
    place = (buffer.data_ptr(), output.data_ptr(), buffer.shape, number)
    return (place if buffer.is_cpu else with_device(place, buffer)), buffer, output


# What an operation ends with.


def ordered(finish: Finish, touched: Sequence[Tensor]) -> Finish:
    """Let the caller's stream go on behind the operation where that is on a device; see ``devices.behind``."""
    return finish if touched[0].is_cpu else behind(finish, touched)


def _giving(tensor: Tensor, buffer: Tensor, output: Tensor) -> Finish:
    def finish(_: Any, _held: Tensor = buffer) -> Tensor:
        return on_device_of(tensor, output)

    return finish if buffer.is_cpu else behind(finish, (buffer, output))


def _giving_all(tensors: Tensors, made: Sequence[tuple[InOut, Tensor, Tensor]]) -> Finish:
    def finish(_: Any) -> Tensors:
        return tuple(on_device_of(tensor, output) for tensor, (_, _, output) in zip(tensors, made, strict=True))

    return ordered(finish, [touched for _, *both in made for touched in both])


def _group(tensors: Sequence[Tensor], doing: str) -> Tensors:
    kept = tuple(tensors)
    ops.some(kept, doing)
    return kept
