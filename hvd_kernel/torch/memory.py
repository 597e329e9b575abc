"""Memory of torch tensors, as the core reads and writes it: staging, types, and the order of work on a GPU.

On a GPU the host never waits: the core starts after the work that the caller's stream has so far, and work that the
stream gets after ``synchronize`` runs after the operation. If the core cannot use a device, torch stages: the core gets
copies in pinned host memory. The reason is logged once, unless the user requested staging (HVD_GPU=staged).

Terms.
  buffer   contiguous memory that the core works on: the tensor itself or a copy of it; on a GPU if the core supports
           it, otherwise on the CPU
  unstage  copy a result from a buffer back to its tensor
  table    the element types that an operation supports, with the core's numbers
  place    see core/tensor; on a device it has two more fields, the device and the stream
  touched  buffers and outputs of an operation; they must stay alive until the caller's stream is past the operation
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from hvd_kernel.core.tensor import DTYPES, NAMES, OPS, REDUCIBLE, Place, cast_for, check_op, device_trouble

Table = dict[torch.dtype, int]
Finish = Callable[[Any], Any]

NUMBERS: Table = {  # all types of this version of torch
    kind: number for name, number in DTYPES.items() if (kind := getattr(torch, name, None)) is not None
}
REDUCED: dict[int, Table] = {
    op: {kind: number for kind, number in NUMBERS.items() if number in accepted} for op, accepted in REDUCIBLE.items()
}
_DENSE = torch.strided
_KINDS = {number: kind for kind, number in NUMBERS.items()}


def reduced_by(op: int) -> Table:
    """Return the types that the core reduces with an operation."""
    check_op(op)
    return REDUCED[op]


def number_of(tensor: Tensor, table: Table) -> int:
    """Return the core's number for the tensor's elements, if the table has them.

    Raises
    ------
    ValueError
        The type is not supported; Horovod's message, with the supported types.
    TypeError
        The value is not a tensor of torch.
    """
    try:
        number = table.get(tensor.dtype)
        if number is None or tensor.layout is not _DENSE or tensor.is_meta or tensor.is_nested:
            raise ValueError(_unsupported(tensor, table))
    except AttributeError:
        raise TypeError(f"{type(tensor).__name__} is not a torch.Tensor: use torch.as_tensor(...).") from None
    return number


_REMEDIES = {  # for tensors that are not dense; by default to_dense()
    "meta": "It has no data: create it on a device, for example with torch.empty_like(tensor, device='cpu').",
    "nested": "Use torch.nested.to_padded_tensor, or its parts: tensor.unbind().",
    "torch.sparse_coo": "Use sparse_allreduce_async for a sum or a mean, else its to_dense().",
}


def _unsupported(tensor: Tensor, table: Table) -> str:
    accepted = ", ".join(str(kind).removeprefix("torch.") for kind in table)
    kind = "meta" if tensor.is_meta else "nested" if tensor.is_nested else str(tensor.layout)
    if kind == "torch.strided":
        name, remedy = f"Tensor type {tensor.type()}", f": {_remedy(tensor, table)}."
    else:
        name = f"Tensor type {tensor.type()}" if kind == "torch.sparse_coo" else f"A tensor of kind {kind}"
        remedy = f". {_REMEDIES.get(kind, 'Use its to_dense().')}"
    return f"{name} is not supported{remedy} Supported are dense tensors of: {accepted}."


def _remedy(tensor: Tensor, table: Table) -> str:
    number = NUMBERS.get(tensor.dtype)
    if number is not None:
        op = next(op for op, reduced in REDUCED.items() if reduced is table)
        return f"{cast_for(NAMES[number], op)}, or use another reduction than {OPS[op]}"
    if tensor.is_quantized:
        return "send tensor.int_repr(), its scale and its zero point"
    return "send tensor.view(torch.uint8) and view the result back" if tensor.element_size() == 1 else "cast it"


def stage(tensor: Tensor) -> Tensor:
    """Return memory that the core can read and write instead of the tensor."""
    if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    if is_supported(tensor):
        plain = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
        return tensor if plain else tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_cuda:  # pinned: the device copies at full speed, and torch caches the pages
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor.detach())
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def check_writable(tensor: Tensor) -> None:
    """Refuse an expanded tensor, several elements of which share memory.

    Raises
    ------
    ValueError
        The tensor is expanded; nothing has been sent.
    """
    if any(step == 0 and extent > 1 for step, extent in zip(tensor.stride(), tensor.shape, strict=True)):
        raise ValueError("This tensor is expanded (a stride is 0): it cannot be written in place. Use its clone().")


def unstage(tensor: Tensor, buffer: Tensor) -> Tensor:
    """Return the tensor with the contents of its buffer."""
    if buffer is not tensor:
        tensor.detach().copy_(buffer)
    return tensor


def on_device_of(tensor: Tensor, result: Tensor) -> Tensor:
    """Return a result on the device of its input."""
    return result if tensor.is_cpu else result.to(tensor.device)


def place_of(buffer: Tensor, number: int) -> Place:
    """Return the place of a buffer: address, shape and type, and on a GPU device and stream."""
    place = (buffer.data_ptr(), buffer.shape, number)
    return place if buffer.is_cpu else with_device(place, buffer)


def from_buffer(buffer: Any, device: torch.device) -> Tensor:
    """Return memory of the core as a tensor that keeps it alive; without a copy if it is on the device."""
    kind = _KINDS[buffer.dtype]
    if not len(buffer):
        return torch.empty(buffer.shape, dtype=kind, device=device)
    if device.type != "cpu" and buffer.device >= 0:
        return tensor_of(buffer, kind)
    tensor = torch.frombuffer(buffer, dtype=kind).view(buffer.shape)
    return tensor if device.type == "cpu" else tensor.to(device)


# On a GPU.


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    return torch.cuda.is_available()


def is_supported(tensor: Tensor) -> bool:
    """Return whether the core works on the tensor's device memory."""
    return tensor.is_cuda and not device_trouble(tensor.get_device())


def with_device(place: tuple[Any, ...], buffer: Tensor) -> tuple[Any, ...]:
    """Return the place of a buffer on a device."""
    return (*place, buffer.get_device(), current_stream(buffer))


def current_stream(tensor: Tensor) -> int:
    """Return this thread's current stream on the tensor's device."""
    pointer: int = _stream_of(tensor).cuda_stream
    return pointer


def resuming_stream(finish: Finish, touched: Sequence[Tensor]) -> Finish:
    """Return a finish function that makes the stream of ``synchronize``'s caller continue after the operation."""
    first = touched[0]
    starting_stream = _stream_of(first).cuda_stream

    def resume_and_finish(outcome: Any) -> Any:
        resume(outcome, starting_stream, touched)
        return finish(outcome)

    return resume_and_finish


def resume(outcome: Any, starting_stream: int, touched: Sequence[Tensor]) -> None:
    """Make the caller's stream continue after an operation, which started after work of a stream."""
    stream = _stream_of(touched[0])
    outcome.event.stream_wait(stream.cuda_stream)
    if stream.cuda_stream != starting_stream:
        for tensor in touched:  # torch must not reuse the memory before this stream is past the operation
            tensor.record_stream(stream)


def tensor_of(buffer: Any, kind: torch.dtype) -> Tensor:
    """Return device memory of the core as a tensor that keeps it alive, without a copy."""
    flat: Tensor = torch.as_tensor(buffer, device=f"cuda:{buffer.device}")
    return flat.view(kind).view(buffer.shape)


def parts_of(buffer: Any, starts: Sequence[int], likes: Sequence[Tensor]) -> list[Tensor]:
    """Return parts of device memory of the core as tensors like ``likes``, each with a storage of its own."""
    return [
        torch.as_tensor(_Part(buffer, start, like.nbytes), device=like.device).view(like.dtype).view(like.shape)
        for start, like in zip(starts, likes, strict=True)
    ]


class _Part:
    """Part of a buffer, which it keeps alive."""

    def __init__(self, buffer: Any, start: int, nbytes: int) -> None:
        self._buffer = buffer
        data = (buffer.pointer + start, False)
        self.__cuda_array_interface__ = {**buffer.__cuda_array_interface__, "shape": (nbytes,), "data": data}


def _stream_of(tensor: Tensor) -> Any:
    return torch.cuda.current_stream(tensor.device)


# Operands and results of core/collectives.


class TensorOperand(Struct, frozen=True, gc=False):
    """A tensor, or for an output the tensor whose device it goes to, and its buffer."""

    tensor: Tensor
    buffer: Tensor
    place: Place


class TensorMemory:
    """Memory of tensors; results are new tensors on the devices of the operands."""

    def operand(self, value: Tensor, op: int | None = None) -> TensorOperand:
        """Return a tensor's memory.

        Raises
        ------
        ValueError
            The core does not support the tensor's type, or has no reduction ``op`` for it.
        TypeError
            The value is not a tensor.
        """
        number = number_of(value, NUMBERS if op is None else reduced_by(op))
        buffer = stage(value)
        return TensorOperand(value, buffer, place_of(buffer, number))

    def empty(self, shape: tuple[int, ...], like: TensorOperand) -> TensorOperand:
        """Return memory of a new tensor, where the operand's buffer is."""
        buffer = like.buffer
        is_whole = shape is like.place[1]
        output = torch.empty_like(buffer) if is_whole else torch.empty(shape, dtype=buffer.dtype, device=buffer.device)
        return TensorOperand(like.tensor, output, (output.data_ptr(), *like.place[1:]))

    def written(self, outputs: Sequence[TensorOperand], operands: Sequence[TensorOperand], outcome: Any) -> list[Any]:
        """Return the outputs' tensors, on a device ready for the caller's stream."""
        if not operands[0].buffer.is_cpu:
            _continue_after(outcome, operands, [*operands, *outputs])
        return [on_device_of(output.tensor, output.buffer) for output in outputs]

    def received(self, operands: Sequence[TensorOperand], outcome: Any) -> list[Any]:
        """Return tensors of the core's memory, on a device ready for the caller's stream."""
        if not operands[0].buffer.is_cpu:
            _continue_after(outcome, operands, operands)
        pairs = zip(outcome.buffers, operands, strict=True)
        return [from_buffer(buffer, operand.tensor.device) for buffer, operand in pairs]


def _continue_after(outcome: Any, operands: Sequence[TensorOperand], touched: Sequence[TensorOperand]) -> None:
    resume(outcome, operands[0].place[-1], [operand.buffer for operand in touched])


MEMORY = TensorMemory()
