"""Operations of ``torch.distributed`` as calls of the core: operands, and how the outcome reaches the outputs.

Each function of ``OPERATIONS`` checks its tensors and returns a ``CoreCall``, which a process group starts.

Terms.
  buffer   contiguous memory on the CPU: the tensor itself, or a copy of it
  operand  a buffer as the core gets it: flat, and as bytes if the core has no such type
  finish   function that copies the core's outcome to the outputs; it keeps operands alive until then
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from hvd_kernel.core.tensor import SCATTERED, Place
from hvd_kernel.torch.distributed.checks import (
    check_count,
    check_dense,
    check_received,
    check_root,
    check_same_dtype,
    check_splits,
)
from hvd_kernel.torch.distributed.reductions import ReduceRule, reduction_of
from hvd_kernel.torch.memory import NUMBERS, check_writable, from_buffer, place_of, stage

Tensors = Sequence[Tensor]
_CPU = torch.device("cpu")


class Member(Struct, frozen=True, gc=False):
    """A process in its group."""

    rank: int
    size: int


class CoreCall(Struct, frozen=True, gc=False):
    """A call of the core's engine."""

    call: str
    """Method of the engine."""
    arguments: tuple[Any, ...]
    """Its arguments: of a collective those between the operation's name and the process set."""
    finish: Callable[[Any], None]
    result: Any
    """The outputs, for the work's ``result`` and future."""


# Memory.


def _operand(buffer: Tensor) -> Tensor:
    flat = buffer.detach().reshape(-1)
    return flat if flat.dtype in NUMBERS else flat.view(torch.uint8)


def _sent(tensor: Tensor) -> Tensor:
    """Return the operand of an input."""
    return _operand(stage(tensor))


def _room(output: Tensor) -> Tensor:
    """Return contiguous memory for an output; the output itself if it is contiguous."""
    if stage(output) is output:
        return output.detach()
    check_writable(output)
    return torch.empty(output.shape, dtype=output.dtype)


def _store(output: Tensor, values: Tensor) -> None:
    """Copy flat values to an output, unless they are its own memory."""
    if values.data_ptr() != output.data_ptr() or values.numel() != output.numel():
        output.detach().copy_(values.view(output.shape))


def _received(outcome: Any, index: int, dtype: torch.dtype) -> Tensor:
    """Return memory of the core as flat elements."""
    flat = from_buffer(outcome.buffers[index], _CPU).reshape(-1)
    return flat if flat.dtype is dtype else flat.view(dtype)


def _split(values: Tensor, outputs: Tensors) -> None:
    """Copy consecutive values to the outputs."""
    sizes = [output.numel() for output in outputs]
    check_received(values.numel(), sum(sizes))
    for output, part in zip(outputs, torch.split(values, sizes), strict=True):
        _store(output, part)


def _check_senders(outcome: Any, dtype: torch.dtype, expected: list[int]) -> None:
    """Check the number of elements that each rank has sent."""
    width = 1 if dtype in NUMBERS else dtype.itemsize
    check_received([size // width for size in outcome.sizes], expected)


def _in(operand: Tensor) -> Place:
    return place_of(operand, NUMBERS[operand.dtype])


def _in_out(operand: Tensor, output: Tensor) -> tuple[int, int, tuple[int, ...], int]:
    return operand.data_ptr(), output.data_ptr(), tuple(operand.shape), NUMBERS[operand.dtype]


def _nothing(*_held: Any) -> None:
    """Keep the arguments of a partial function alive."""


# Reductions.


def _reduced(
    operands: Tensors, rooms: Tensors, reduction: ReduceRule, finish: Callable[[Tensors], None], result: Tensors
) -> CoreCall:
    """Reduce flat operands on all ranks; ``finish`` gets the reduced elements: ``rooms``, or a combination."""
    if reduction.combine is not None:
        dtypes = [operand.dtype for operand in operands]

        def fold(outcome: Any, _held: Tensors = operands) -> None:
            gathered = [_received(outcome, index, dtype) for index, dtype in enumerate(dtypes)]
            sizes = [operand.numel() for operand in operands]
            finish([reduction.folded(flat.view(-1, size)) for flat, size in zip(gathered, sizes, strict=True)])

        return CoreCall("allgather", ([_in(operand) for operand in operands],), fold, result)

    def pass_on(_outcome: Any, _held: Tensors = operands) -> None:
        finish(rooms)

    places = [_in_out(operand, room) for operand, room in zip(operands, rooms, strict=True)]
    return CoreCall("allreduce", (places, reduction.op), pass_on, result)


def _alone(buffers: list[Tensor]) -> list[Tensor]:
    """Return buffers that do not share memory: the core writes all of them."""
    seen: set[int] = set()
    for index, buffer in enumerate(buffers):
        if buffer.numel() and buffer.data_ptr() in seen:
            buffers[index] = buffer.clone()
        seen.add(buffer.data_ptr())
    return buffers


def all_reduce(_member: Member, tensors: Tensors, op: Any) -> CoreCall:
    """Reduce tensors in place on all ranks, all of them or none."""
    check_same_dtype("all_reduce", tensors)
    for tensor in tensors:
        check_writable(tensor)
    reduction = reduction_of(op, tensors[0])
    operands = _alone([reduction.loaded(stage(tensor).detach()).reshape(-1) for tensor in tensors])

    def finish(reduced: Tensors) -> None:
        for tensor, values in zip(tensors, reduced, strict=True):
            if values.data_ptr() != tensor.data_ptr():
                _store(tensor, values.to(tensor.dtype))

    return _reduced(operands, operands, reduction, finish, list(tensors))


def reduce(member: Member, tensor: Tensor, op: Any, root: int) -> CoreCall:
    """Reduce a tensor in place on the root; it is unchanged on the other ranks."""
    check_root("reduce", root, member.size)
    if member.rank == root:
        return all_reduce(member, [tensor], op)
    check_dense(tensor)
    reduction = reduction_of(op, tensor)
    operand = reduction.loaded(stage(tensor).detach()).reshape(-1)
    return _reduced([operand], [torch.empty_like(operand)], reduction, _nothing, [tensor])


def reduce_scatter(member: Member, outputs: Tensors, inputs: Tensors, op: Any) -> CoreCall:
    """Reduce inputs of equal parts, and write this rank's part of each to its output."""
    check_same_dtype("reduce_scatter", [*inputs, *outputs])
    for output, tensor in zip(outputs, inputs, strict=True):
        check_count("reduce_scatter", tensor.numel(), output.numel() * member.size)
    reduction = reduction_of(op, inputs[0])
    operands = [reduction.loaded(stage(tensor).detach()).reshape(member.size, -1) for tensor in inputs]
    rooms = [_room(output) for output in outputs]
    if reduction.combine is None and reduction.op in SCATTERED:
        parts = [room if reduction.wider is None else torch.empty(room.shape, dtype=reduction.wider) for room in rooms]
        places = [_in_out(operand, part) for operand, part in zip(operands, parts, strict=True)]

        def finish(_outcome: Any, _held: Tensors = operands) -> None:
            for output, part in zip(outputs, parts, strict=True):
                _store(output, part.to(output.dtype))

        return CoreCall("reducescatter", (places, reduction.op), finish, list(outputs))

    def keep(reduced: Tensors) -> None:
        for output, values in zip(outputs, reduced, strict=True):
            _store(output, values.view(member.size, -1)[member.rank].to(output.dtype))

    scratch = [torch.empty_like(operand) for operand in operands]
    return _reduced([operand.reshape(-1) for operand in operands], scratch, reduction, keep, list(outputs))


def reduce_scatter_list(member: Member, output: Tensor, parts: Tensors, op: Any) -> CoreCall:
    """Reduce one part for each rank, which may differ in size, and write this rank's part to the output."""
    check_count("reduce_scatter", len(parts), member.size, "input tensors")
    check_same_dtype("reduce_scatter", [*parts, output])
    check_count("reduce_scatter", parts[member.rank].numel(), output.numel())
    whole = torch.cat([stage(part).detach().reshape(-1) for part in parts])
    sizes = [part.numel() for part in parts]
    if len(set(sizes)) == 1:
        return reduce_scatter(member, [output], [whole], op)
    reduction = reduction_of(op, whole)
    operand = reduction.loaded(whole)

    def keep(reduced: Tensors) -> None:
        _store(output, torch.split(reduced[0].reshape(-1), sizes)[member.rank].to(output.dtype))

    check_writable(output)
    return _reduced([operand], [torch.empty_like(operand)], reduction, keep, [output])


# Movements.


def broadcast(member: Member, tensor: Tensor, root: int) -> CoreCall:
    """Copy the root's tensor to the other ranks' tensors."""
    check_root("broadcast", root, member.size)
    check_dense(tensor)
    buffer = stage(tensor).detach() if member.rank == root else _room(tensor)
    operand = _operand(buffer)
    finish = partial(_nothing, operand) if member.rank == root else lambda _outcome: _store(tensor, buffer)
    return CoreCall("broadcast", ([_in_out(operand, operand)], root), finish, [tensor])


def all_gather(member: Member, outputs: Tensors, tensor: Tensor) -> CoreCall:
    """Copy each rank's tensor to the output of its number; outputs may differ in size."""
    check_count("all_gather", len(outputs), member.size, "output tensors")
    check_same_dtype("all_gather", [tensor, *outputs])
    check_count("all_gather", outputs[member.rank].numel(), tensor.numel())
    _check_all_writable(outputs)
    operand = _sent(tensor)

    def finish(outcome: Any, _held: Tensor = operand) -> None:
        _split(_received(outcome, 0, tensor.dtype), outputs)

    return CoreCall("allgather", ([_in(operand)],), finish, list(outputs))


def all_gather_into(member: Member, outputs: Tensors, inputs: Tensors) -> CoreCall:
    """Write all ranks' tensors one after another to one output, for each pair of input and output."""
    for output, tensor in zip(outputs, inputs, strict=True):
        check_same_dtype("all_gather", [tensor, output])
        check_count("all_gather", output.numel(), tensor.numel() * member.size)
    _check_all_writable(outputs)
    operands = [_sent(tensor) for tensor in inputs]

    def finish(outcome: Any, _held: Tensors = operands) -> None:
        for index, output in enumerate(outputs):
            _split(_received(outcome, index, output.dtype), [output])

    return CoreCall("allgather", ([_in(operand) for operand in operands],), finish, list(outputs))


def all_gather_coalesced(member: Member, outputs: Sequence[Tensors], inputs: Tensors) -> CoreCall:
    """Copy each rank's list of tensors to the output list of its number."""
    check_count("all_gather_coalesced", len(outputs), member.size, "output lists")
    for tensors in outputs:
        check_count("all_gather_coalesced", len(tensors), len(inputs), "tensors in an output list")
        for output, tensor in zip(tensors, inputs, strict=True):
            check_same_dtype("all_gather_coalesced", [tensor, output])
            check_count("all_gather_coalesced", output.numel(), tensor.numel())
            check_writable(output)
    operands = [_sent(tensor) for tensor in inputs]

    def finish(outcome: Any, _held: Tensors = operands) -> None:
        for index, tensor in enumerate(inputs):
            _split(_received(outcome, index, tensor.dtype), [tensors[index] for tensors in outputs])

    return CoreCall("allgather", ([_in(operand) for operand in operands],), finish, outputs)


def gather(member: Member, outputs: Tensors, tensor: Tensor, root: int) -> CoreCall:
    """Send each rank's tensor to the root, into the output of its number."""
    check_root("gather", root, member.size)
    check_dense(tensor)
    operand = _sent(tensor)
    if member.rank == root:
        check_count("gather", len(outputs), member.size, "output tensors")
        check_same_dtype("gather", [tensor, *outputs])
        check_count("gather", outputs[root].numel(), tensor.numel())
        _check_all_writable(outputs)
    else:
        check_count("gather", len(outputs), 0, "output tensors, as this rank is not the destination")
    splits = [operand.numel() if rank == root else 0 for rank in range(member.size)]

    def finish(outcome: Any, _held: Tensor = operand) -> None:
        if member.rank == root:
            _check_senders(outcome, tensor.dtype, [output.numel() for output in outputs])
            _split(_received(outcome, 0, tensor.dtype), outputs)

    return CoreCall("alltoall", (_in(operand), splits), finish, list(outputs))


def scatter(member: Member, output: Tensor, inputs: Tensors, root: int) -> CoreCall:
    """Send one of the root's tensors to each rank."""
    check_root("scatter", root, member.size)
    check_dense(output)
    check_writable(output)
    if member.rank == root:
        check_count("scatter", len(inputs), member.size, "input tensors")
        check_same_dtype("scatter", [output, *inputs])
        check_count("scatter", inputs[root].numel(), output.numel())
    else:
        check_count("scatter", len(inputs), 0, "input tensors, as this rank is not the source")
    return _exchanged([output], inputs, member.size)


def all_to_all(member: Member, outputs: Tensors, inputs: Tensors) -> CoreCall:
    """Send one tensor to each rank, and receive one from each; they may differ in size."""
    check_count("all_to_all", len(inputs), member.size, "input tensors")
    check_count("all_to_all", len(outputs), member.size, "output tensors")
    check_same_dtype("all_to_all", [*inputs, *outputs])
    _check_all_writable(outputs)
    return _exchanged(outputs, inputs, member.size)


def _exchanged(outputs: Tensors, inputs: Tensors, size: int) -> CoreCall:
    """Send one input to each rank, or nothing without inputs."""
    dtype = outputs[0].dtype
    operands = [_sent(tensor) for tensor in inputs]
    whole = torch.cat(operands) if operands else _operand(torch.empty(0, dtype=dtype))
    splits = [operand.numel() for operand in operands] or [0] * size

    def finish(outcome: Any, _held: Tensor = whole) -> None:
        if len(outputs) == size:  # one from each rank; a scatter has a single sender
            _check_senders(outcome, dtype, [output.numel() for output in outputs])
        _split(_received(outcome, 0, dtype), outputs)

    return CoreCall("alltoall", (_in(whole), splits), finish, list(outputs))


def all_to_all_single(
    member: Member, output: Tensor, tensor: Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
) -> CoreCall:
    """Send rows of dimension 0 to each rank, and receive rows from each; without splits equally many."""
    check_same_dtype("all_to_all_single", [tensor, output])
    check_writable(output)
    expected = check_splits(output, output_splits, member.size, "output")
    rows = check_splits(tensor, input_splits, member.size, "input")
    operand = _sent(tensor)
    row_size = operand.numel() // max(sum(rows), 1)

    output_row = output.numel() // max(sum(expected), 1)

    def finish(outcome: Any, _held: Tensor = operand) -> None:
        _check_senders(outcome, tensor.dtype, [count * output_row for count in expected])
        _split(_received(outcome, 0, tensor.dtype), [output])

    return CoreCall("alltoall", (_in(operand), [count * row_size for count in rows]), finish, [output])


# Messages.


def send(_member: Member, tensor: Tensor, destination: int, tag: int) -> CoreCall:
    """Send a tensor to one rank."""
    check_dense(tensor)
    operand = _sent(tensor)
    return CoreCall("send", ([_in_out(operand, operand)], destination, tag), partial(_nothing, operand), [tensor])


def recv(_member: Member, output: Tensor, source: int, tag: int) -> CoreCall:
    """Receive a tensor from one rank."""
    check_dense(output)
    buffer = _room(output)
    operand = _operand(buffer)
    place = _in_out(operand, operand)
    return CoreCall("recv", ([place], source, tag), lambda _outcome: _store(output, buffer), [output])


def probe(_member: Member, output: Tensor, tag: int, receive: Callable[[int], None]) -> CoreCall:
    """Wait until a rank sends with the tag, then call ``receive`` with its number."""
    check_dense(output)
    check_writable(output)
    return CoreCall("probe", (tag,), lambda outcome: receive(outcome.number), [output])


def barrier(_member: Member) -> CoreCall:
    """Wait until all ranks have called it."""
    return CoreCall("barrier", (), _nothing, [])


def _check_all_writable(outputs: Tensors) -> None:
    for output in outputs:
        check_writable(output)


OPERATIONS: dict[str, Callable[..., CoreCall]] = {
    "all_gather": all_gather,
    "all_gather_coalesced": all_gather_coalesced,
    "all_gather_into": all_gather_into,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "barrier": barrier,
    "broadcast": broadcast,
    "gather": gather,
    "probe": probe,
    "recv": recv,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_list": reduce_scatter_list,
    "scatter": scatter,
    "send": send,
}

MESSAGES = frozenset({"probe", "recv", "send"})
"""Operations that only some ranks call: the core numbers them by sender, receiver and tag."""
