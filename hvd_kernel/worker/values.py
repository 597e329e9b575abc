"""Python objects between notebook and ranks, this end: pickle protocol 5, big arrays as raw buffers beside it.

Tensors leave as plain CPU memory without history, so that a notebook without a GPU can read what a rank with one sends.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import cloudpickle


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            return _reduce_tensor(torch, obj)
        return super().reducer_override(obj)


def pack(value: Any) -> list[Any]:
    """Return the pickle and its out-of-band buffers."""
    parts: list[Any] = []
    head = io.BytesIO()
    _Pickler(head, protocol=5, buffer_callback=lambda part: parts.append(part.raw())).dump(value)
    return [head.getvalue(), *parts]


def unpack(buffers: list[Any]) -> Any:
    """Return the object of ``pack``; arrays own writable memory."""
    head, *rest = buffers
    return pickle.loads(memoryview(head), buffers=[bytearray(memoryview(part)) for part in rest])  # noqa: S301


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    if (
        tensor.layout is not torch.strided
        or tensor.is_quantized
        or type(tensor) not in {torch.Tensor, torch.nn.Parameter}
    ):
        return NotImplemented
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter, (tensor.detach(), tensor.requires_grad)
    plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return torch.Tensor.view, (plain.view(torch.int16), torch.bfloat16)
    try:
        array = plain.numpy()
    except TypeError:  # quantized, or a dtype that NumPy has not
        return NotImplemented
    return torch.from_numpy, (array,)
