"""Fakes of torch tensors on GPUs, for a torch without CUDA: host memory that claims to be a device's.

Terms.
  fake stream  a number, returned by torch.cuda.current_stream; the test controls its order
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hvdtest.fake_cuda_driver import FakeStream


class FakeDeviceTensor(torch.Tensor):
    """A tensor of ``cuda:1``; ``recorded``: streams that its memory was recorded on."""

    is_cpu = property(lambda _: False)
    is_cuda = property(lambda _: True)
    device = property(lambda _: torch.device("cuda", 1))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        return args[0] if func is torch.Tensor.copy_ else made  # what is written to stays where it is

    def get_device(self) -> int:
        return 1

    def record_stream(self, stream: Any) -> None:
        self.__dict__.setdefault("recorded", []).append(stream.cuda_stream)

    def to(self, *_: Any, **__: Any) -> Any:
        return self


def on_device(tensor: torch.Tensor) -> FakeDeviceTensor:
    return tensor.as_subclass(FakeDeviceTensor)


class FakeCuda:
    """torch.cuda's current streams, per device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams = {0: 0xA0, 1: 0xA1}
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(self.streams[device.index]))
        empty, as_tensor = torch.empty, torch.as_tensor

        def made(*shape: Any, device: Any = None, pin_memory: bool = False, **how: Any) -> torch.Tensor:
            """Pinned memory needs CUDA: plain memory stands for it."""
            return _on(device, empty(*shape, **how))

        def seen(data: Any, device: Any = None, **how: Any) -> torch.Tensor:
            """NumPy's array interface stands for CUDA's."""
            return _on(device, as_tensor(np.asarray(data) if hasattr(data, "__array_interface__") else data, **how))

        monkeypatch.setattr(torch, "empty", made)
        monkeypatch.setattr(torch, "as_tensor", seen)

    @contextmanager
    def stream(self, pointer: int, device: int = 1) -> Iterator[None]:
        """Make another stream the current one."""
        before, self.streams[device] = self.streams[device], pointer
        yield
        self.streams[device] = before


def _on(device: Any, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if device is None or torch.device(device).type == "cpu" else on_device(tensor)
