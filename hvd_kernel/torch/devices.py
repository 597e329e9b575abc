"""Tensors of a GPU as the core takes them: where they lie, and what orders the work of torch and of the core there.

The host waits for nothing: the core begins behind what the caller's stream has been given so far, and whatever that
stream is given after ``synchronize`` comes behind the operation. Where the core cannot use a device torch stages: the
core sees copies in pinned host memory. Why is said once, unless the user asked for it (HVD_GPU=staged).

Terms.
  place    see tensor; on a device it ends with two more words, the device and the stream
  buffer   memory that the core works on in a tensor's place: the tensor itself, or a copy of it
  touched  buffers and outputs of one operation, which is to stay alive until the caller's stream is behind it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core.tensor import device_trouble

Finish = Callable[[Any], Any]


def has_gpu() -> bool:
    """Tell whether torch sees a GPU."""
    return torch.cuda.is_available()


def is_taken(tensor: Tensor) -> bool:
    """Tell whether the core works on this tensor's memory where it is."""
    return tensor.is_cuda and not device_trouble(tensor.get_device())


def with_device(place: tuple[Any, ...], buffer: Tensor) -> tuple[Any, ...]:
    """Return the place of a buffer on a device."""
    return (*place, buffer.get_device(), current_stream(buffer))


def current_stream(tensor: Tensor) -> int:
    """Return the stream that this thread gives work on the tensor's device to."""
    pointer: int = _stream_of(tensor).cuda_stream
    return pointer


def behind(finish: Finish, touched: Sequence[Tensor]) -> Finish:
    """Let the caller's stream of ``synchronize`` go on behind the operation, then finish."""
    first = touched[0]
    begun = _stream_of(first).cuda_stream

    def go_on(outcome: Any) -> Any:
        stream = _stream_of(first)
        outcome.event.stream_wait(stream.cuda_stream)
        if stream.cuda_stream != begun:
            for tensor in touched:  # its memory is free for others behind this stream only
                tensor.record_stream(stream)
        return finish(outcome)

    return go_on


def adopted(buffer: Any, kind: torch.dtype) -> Tensor:
    """Return device memory of the core as a tensor that keeps it alive; without copying."""
    flat: Tensor = torch.as_tensor(buffer, device=f"cuda:{buffer.device}")
    return flat.view(kind).view(buffer.shape)


def parts_of(buffer: Any, starts: Sequence[int], likes: Sequence[Tensor]) -> list[Tensor]:
    """Return pieces of device memory of the core, as tensors like these; each has a storage of its own."""
    return [
        torch.as_tensor(_Part(buffer, start, like.nbytes), device=like.device).view(like.dtype).view(like.shape)
        for start, like in zip(starts, likes, strict=True)
    ]


class _Part:
    """Some bytes of a buffer, which it keeps alive."""

    def __init__(self, buffer: Any, start: int, nbytes: int) -> None:
        self._buffer = buffer
        data = (buffer.pointer + start, False)
        self.__cuda_array_interface__ = {**buffer.__cuda_array_interface__, "shape": (nbytes,), "data": data}


def _stream_of(tensor: Tensor) -> Any:
    return torch.cuda.current_stream(tensor.device)
