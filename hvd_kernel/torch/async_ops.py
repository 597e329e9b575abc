"""The collectives that return a handle: everything that touches the core is here. Horovod's signatures.

``op_async`` makes a new tensor, ``op_async_`` works in place. Names match operations across ranks; the tensors are held
until ``synchronize`` has given the result.
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_kernel import ops
from hvd_kernel.ops import Average, InOut, Sum
from hvd_kernel.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.torch.staging import NUMBERS, SUMS, from_buffer, host_of, number_of, place_of, settle


def operation(op: int | None, average: bool | None) -> int:
    """Horovod's old ``average=`` and new ``op=`` as one."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn(
        "Parameter `average` has been replaced with `op` and will be removed in v1.0", DeprecationWarning, stacklevel=3
    )
    return Average if average else Sum


def _in_place(tensor: Tensor, table: dict[torch.dtype, int]) -> tuple[InOut, Tensor]:
    number = number_of(tensor, table)
    host = host_of(tensor)
    pointer = host.data_ptr()
    return (pointer, pointer, tuple(host.shape), number), host


def _out_of_place(tensor: Tensor, table: dict[torch.dtype, int]) -> tuple[InOut, Tensor, Tensor]:
    number = number_of(tensor, table)
    host = host_of(tensor)
    output = torch.empty_like(host)
    return (host.data_ptr(), output.data_ptr(), tuple(host.shape), number), host, output


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start averaging or summing over all ranks, in place; return a handle."""
    if process_set is not global_process_set:
        check(process_set)
    if op is None or average is not None:
        op = operation(op, average)
    place, host = _in_place(tensor, SUMS)
    return ops.allreduce_places(
        f"allreduce.{name}" if name else "",
        (place,),
        op,
        (prescale_factor, postscale_factor),
        lambda _: settle(tensor, host),
    )


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start averaging or summing over all ranks, into a new tensor; return a handle."""
    check(process_set)
    op = operation(op, average)
    place, host, output = _out_of_place(tensor, SUMS)

    def finish(_: Any, _held: Tensor = host) -> Tensor:
        return output.to(tensor.device)

    return ops.allreduce_places(
        f"allreduce.{name}" if name else "", (place,), op, (prescale_factor, postscale_factor), finish
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing several tensors in place, together or not at all; ``synchronize`` returns a tuple of them."""
    check(process_set)
    op = operation(op, average)
    kept = tuple(tensors)
    _some(kept)
    pairs = [_in_place(tensor, SUMS) for tensor in kept]

    def finish(_: Any) -> tuple[Tensor, ...]:
        return tuple(settle(tensor, host) for tensor, (_, host) in zip(kept, pairs, strict=True))

    places = [place for place, _ in pairs]
    return ops.allreduce_places(
        f"grouped_allreduce.{name}" if name else "", places, op, (prescale_factor, postscale_factor), finish
    )


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing several tensors into new ones, together or not at all; ``synchronize`` returns a tuple."""
    check(process_set)
    op = operation(op, average)
    kept = tuple(tensors)
    _some(kept)
    made = [_out_of_place(tensor, SUMS) for tensor in kept]

    def finish(_: Any) -> tuple[Tensor, ...]:
        return tuple(output.to(tensor.device) for tensor, (_, _, output) in zip(kept, made, strict=True))

    places = [place for place, _, _ in made]
    return ops.allreduce_places(
        f"grouped_allreduce.{name}" if name else "", places, op, (prescale_factor, postscale_factor), finish
    )


def _some(tensors: tuple[Tensor, ...]) -> None:
    if not tensors:
        raise ValueError("grouped_allreduce needs at least one tensor.")


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start concatenating every rank's rows; the number of rows may differ. Return a handle."""
    check(process_set)
    number = number_of(tensor, NUMBERS)
    host = host_of(tensor)
    if not host.dim():
        raise IndexError("tuple index out of range: allgather concatenates rows, a 0-dimensional tensor has none.")

    def finish(buffer: Any, _held: Tensor = host) -> Tensor:
        return from_buffer(buffer, tensor.device)

    return ops.allgather_place(f"allgather.{name}" if name else "", place_of(host, number), finish)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start overwriting the tensor by the root's; return a handle."""
    check(process_set)
    place, host = _in_place(tensor, NUMBERS)
    return ops.broadcast_place(f"broadcast.{name}" if name else "", place, root_rank, lambda _: settle(tensor, host))


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start receiving the root's tensor as a new one; return a handle."""
    check(process_set)
    place, host, output = _out_of_place(tensor, NUMBERS)

    def finish(_: Any, _held: Tensor = host) -> Tensor:
        return output.to(tensor.device)

    return ops.broadcast_place(f"broadcast.{name}" if name else "", place, root_rank, finish)
