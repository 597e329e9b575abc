"""Tensors of torch in checkpoints: bytes with an element type and a shape, on the CPU."""

from __future__ import annotations

import torch

from hvd_kernel.elastic.checkpoint.values import ITEM_BYTES, KINDS, Kind, NotStorable, Tensor

_DTYPES = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def to_tensor(value: torch.Tensor) -> Tensor:
    """Return the elements of a tensor; those of a CPU tensor are shared, not copied.

    Raises
    ------
    NotStorable
        It is sparse, quantized or of an element type that files have no name for.
    """
    if value.layout != torch.strided or value.dtype not in _NAMES or value.is_meta:
        raise NotStorable(f"a checkpoint cannot hold a tensor of {value.dtype}, {value.layout}")
    flat = value.detach().cpu().contiguous().reshape(-1)
    return Tensor(_NAMES[value.dtype], tuple(value.shape), flat.view(torch.uint8).numpy().data)


def from_tensor(tensor: Tensor) -> torch.Tensor:
    """Return a new tensor."""
    dtype = _DTYPES[tensor.dtype]
    if not tensor.data.nbytes:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(tensor.shape)


KINDS["torch"] = Kind(torch.Tensor, to_tensor, from_tensor)
