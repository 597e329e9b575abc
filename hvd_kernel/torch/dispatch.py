"""Dispatch of collectives from torch tensors to the core, shared by all forms of an operation. Each returns a handle.

Terms.
  in place  a trailing underscore: the result overwrites the tensor
  buffer    see staging; on a device ``resuming_stream`` orders the operation with torch's work, see devices
  group     several tensors that are one operation, all of them or none; its result is a tuple
  waits     see handles: the caller waits next
  fast      an allreduce of plain CPU tensors in one call of the core
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hvd_kernel.core import handles, ops
from hvd_kernel.core.collectives import share_of
from hvd_kernel.core.handles import FastCalls, InOut, Scales
from hvd_kernel.core.ops import wire_name
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import SCATTERED, check_op
from hvd_kernel.torch.devices import Finish, resuming_stream, with_device
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

_exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
fast = FastCalls(Tensor, Parameter, _exchange, readable=_exchange is not None)  # torch 2.10 and newer


def is_plain(tensor: Any) -> bool:
    """Return whether autograd does not record an operation on the tensor, so that ``fast`` may run it."""
    return type(tensor) is Tensor and tensor.is_cpu and not (tensor.requires_grad and torch.is_grad_enabled())


def are_plain(tensors: Any) -> bool:
    """Return whether all tensors of a list or tuple are plain; False for iterators, which are not read."""
    return type(tensors) in {list, tuple} and all(map(is_plain, tensors))


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
    """Start an allreduce in place."""
    group = 0 if process_set is global_process_set else set_id(process_set, "Allreduce")
    place, buffer = _in_place(tensor, _reduced(op))
    wire = f"allreduce.{name}" if name else ""

    def finish(_: Any) -> Tensor:
        return unstage(tensor, buffer)

    ordered = finish if buffer.is_cpu else resuming_stream(finish, (buffer,))
    return handles.allreduce_places(wire, (place,), op, scales, ordered, group, waits)


def allreduce(
    tensor: Tensor, name: str | None, op: int, scales: Scales, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start an allreduce into a new tensor."""
    group = set_id(process_set, "Allreduce")
    place, buffer, output = _out_of_place(tensor, _reduced(op))
    finish = _returning(tensor, buffer, output)
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
    """Start a grouped allreduce in place."""
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
    """Start a grouped allreduce into new tensors."""
    group = set_id(process_set, "Allreduce")
    kept = _group(tensors, "grouped_allreduce")
    operands = [_out_of_place(tensor, _reduced(op)) for tensor in kept]
    places, finish = [place for place, _, _ in operands], _returning_all(kept, operands)
    return handles.allreduce_places(wire_name("grouped_allreduce", name), places, op, scales, finish, group, waits)


def allgather(tensor: Tensor, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Start an allgather: a concatenation of rows."""
    group = set_id(process_set, "Allgather")
    place, buffer = _rows(tensor)

    def finish(outcome: Any, _held: Tensor = buffer) -> Tensor:
        return from_buffer(outcome.buffers[0], tensor.device)

    wire = wire_name("allgather", name)
    return handles.allgather_places(wire, (place,), ordered(finish, (buffer,)), group, waits=waits)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet, *, waits: bool = False
) -> int:
    """Start a grouped allgather: a concatenation of rows of each tensor."""
    group = set_id(process_set, "Allgather")
    kept = _group(tensors, "grouped_allgather")
    operands = [_rows(tensor) for tensor in kept]
    buffers = [buffer for _, buffer in operands]

    def finish(outcome: Any, _held: Any = buffers) -> Tensors:
        results = zip(outcome.buffers, kept, strict=True)
        return tuple(from_buffer(result, tensor.device) for result, tensor in results)

    wire, places = wire_name("grouped_allgather", name), [place for place, _ in operands]
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
    """Start a broadcast in place."""
    group = set_id(process_set, "Broadcast")
    place, buffer = _in_place(tensor, NUMBERS)
    wire = wire_name("broadcast", name)

    def finish(_: Any) -> Tensor:
        return unstage(tensor, buffer)

    return handles.broadcast_places(wire, (place,), root_rank, ordered(finish, (buffer,)), group, waits)


def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Start a broadcast into a new tensor."""
    group = set_id(process_set, "Broadcast")
    place, buffer, output = _out_of_place(tensor, NUMBERS)
    finish = _returning(tensor, buffer, output)
    return handles.broadcast_places(wire_name("broadcast", name), (place,), root_rank, finish, group, waits)


def alltoall(tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet, *, waits: bool = False) -> int:
    """Start an alltoall; its result is the received rows, and the number of rows from each rank (device of splits)."""
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
    """Start a reducescatter: a reduction of which each rank receives its share of the rows."""
    group = set_id(process_set, "Reducescatter")
    place, buffer, output = _share(tensor, op, group)
    finish = _returning(tensor, buffer, output)
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
    """Start a grouped reducescatter."""
    group = set_id(process_set, "Reducescatter")
    kept = _group(tensors, "grouped_reducescatter")
    operands = [_share(tensor, op, group) for tensor in kept]
    places, finish = [place for place, _, _ in operands], _returning_all(kept, operands)
    return handles.reducescatter_places(
        wire_name("grouped_reducescatter", name), places, op, scales, finish, group, waits
    )


def _share(tensor: Tensor, op: int, group: int) -> tuple[InOut, Tensor, Tensor]:
    number = number_of(tensor, _reduced(op) if op in SCATTERED else NUMBERS)
    buffer = stage(tensor)
    output = torch.empty(share_of(buffer.shape, group), dtype=buffer.dtype, device=buffer.device)
    place = (buffer.data_ptr(), output.data_ptr(), buffer.shape, number)
    return (place if buffer.is_cpu else with_device(place, buffer)), buffer, output


# Functions that make the result of a completed operation.


def ordered(finish: Finish, touched: Sequence[Tensor]) -> Finish:
    """Return a finish function that orders the caller's stream after an operation on a device."""
    return finish if touched[0].is_cpu else resuming_stream(finish, touched)


def _returning(tensor: Tensor, buffer: Tensor, output: Tensor) -> Finish:
    def finish(_: Any, _held: Tensor = buffer) -> Tensor:
        return on_device_of(tensor, output)

    return finish if buffer.is_cpu else resuming_stream(finish, (buffer, output))


def _returning_all(tensors: Tensors, operands: Sequence[tuple[InOut, Tensor, Tensor]]) -> Finish:
    def finish(_: Any) -> Tensors:
        return tuple(on_device_of(tensor, output) for tensor, (_, _, output) in zip(tensors, operands, strict=True))

    return ordered(finish, [touched for _, *both in operands for touched in both])


def _group(tensors: Sequence[Tensor], doing: str) -> Tensors:
    kept = tuple(tensors)
    ops.some(kept, doing)
    return kept
