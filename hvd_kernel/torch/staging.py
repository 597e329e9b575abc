"""Staging of a torch tensor in memory that the core can work on, and back.

Terms.
  buffer   contiguous memory that the core works on: the tensor itself or a copy of it; on a GPU if the core supports it
           (see devices), otherwise on the CPU
  unstage  copy a result from a buffer back to its tensor
  table    the element types that an operation supports, with the core's numbers
"""

from __future__ import annotations

from typing import Any

import torch

from hvd_kernel.core.tensor import DTYPES, NAMES, OPS, REDUCIBLE, Place, cast_for
from hvd_kernel.torch import devices

Table = dict[torch.dtype, int]

NUMBERS: Table = {  # all types of this version of torch
    kind: number for name, number in DTYPES.items() if (kind := getattr(torch, name, None)) is not None
}
REDUCED: dict[int, Table] = {
    op: {kind: number for kind, number in NUMBERS.items() if number in accepted} for op, accepted in REDUCIBLE.items()
}
_DENSE = torch.strided
_KINDS = {number: kind for kind, number in NUMBERS.items()}


def number_of(tensor: torch.Tensor, table: Table) -> int:
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


def _unsupported(tensor: torch.Tensor, table: Table) -> str:
    accepted = ", ".join(str(kind).removeprefix("torch.") for kind in table)
    kind = "meta" if tensor.is_meta else "nested" if tensor.is_nested else str(tensor.layout)
    if kind == "torch.strided":
        name, remedy = f"Tensor type {tensor.type()}", f": {_remedy(tensor, table)}."
    else:
        name = f"Tensor type {tensor.type()}" if kind == "torch.sparse_coo" else f"A tensor of kind {kind}"
        remedy = f". {_REMEDIES.get(kind, 'Use its to_dense().')}"
    return f"{name} is not supported{remedy} Supported are dense tensors of: {accepted}."


def _remedy(tensor: torch.Tensor, table: Table) -> str:
    number = NUMBERS.get(tensor.dtype)
    if number is not None:
        op = next(op for op, reduced in REDUCED.items() if reduced is table)
        return f"{cast_for(NAMES[number], op)}, or use another reduction than {OPS[op]}"
    if tensor.is_quantized:
        return "send tensor.int_repr(), its scale and its zero point"
    return "send tensor.view(torch.uint8) and view the result back" if tensor.element_size() == 1 else "cast it"


def stage(tensor: torch.Tensor) -> torch.Tensor:
    """Return memory that the core can read and write instead of the tensor."""
    if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
        return tensor
    if devices.is_supported(tensor):
        plain = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
        return tensor if plain else tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_cuda:  # pinned: the device copies at full speed, and torch caches the pages
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor.detach())
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def check_writable(tensor: torch.Tensor) -> None:
    """Refuse an expanded tensor, several elements of which share memory.

    Raises
    ------
    ValueError
        The tensor is expanded; nothing has been sent.
    """
    if any(step == 0 and extent > 1 for step, extent in zip(tensor.stride(), tensor.shape, strict=True)):
        raise ValueError("This tensor is expanded (a stride is 0): it cannot be written in place. Use its clone().")


def unstage(tensor: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """Return the tensor with the contents of its buffer."""
    if buffer is not tensor:
        tensor.detach().copy_(buffer)
    return tensor


def on_device_of(tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return a result on the device of its input."""
    return result if tensor.is_cpu else result.to(tensor.device)


def place_of(buffer: torch.Tensor, number: int) -> Place:
    """Return the place of a buffer: address, shape and type, and on a GPU device and stream."""
    place = (buffer.data_ptr(), buffer.shape, number)
    return place if buffer.is_cpu else devices.with_device(place, buffer)


def from_buffer(buffer: Any, device: torch.device) -> torch.Tensor:
    """Return memory of the core as a tensor that keeps it alive; without a copy if it is on the device."""
    kind = _KINDS[buffer.dtype]
    if not len(buffer):
        return torch.empty(buffer.shape, dtype=kind, device=device)
    if device.type != "cpu" and buffer.device >= 0:
        return devices.tensor_of(buffer, kind)
    return torch.frombuffer(buffer, dtype=kind).view(buffer.shape).to(device)
