"""Tensors of a GPU as operands of the core: their places, and the order of torch's and the core's work on the device.

The host never waits: the core starts after the work that the caller's stream has so far, and work that the stream gets
after ``synchronize`` runs after the operation. If the core cannot use a device, torch stages: the core gets copies in
pinned host memory. The reason is logged once, unless the user requested staging (HVD_GPU=staged).

Terms.
  place    see tensor; on a device it has two more fields, the device and the stream
  buffer   memory that the core works on instead of a tensor: the tensor itself, or a copy of it
  touched  buffers and outputs of an operation; they must stay alive until the caller's stream is past the operation
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core.tensor import device_trouble

Finish = Callable[[Any], Any]


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

    def resume(outcome: Any) -> Any:
        stream = _stream_of(first)
        outcome.event.stream_wait(stream.cuda_stream)
        if stream.cuda_stream != starting_stream:
            for tensor in touched:  # torch must not reuse the memory before this stream is past the operation
                tensor.record_stream(stream)
        return finish(outcome)

    return resume


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
