"""A fake GPU for a rank's torch without CUDA: host tensors that claim to be a device's, on streams of the fake driver.

The core does with them all that it does with real ones: it takes its plugin, which takes the fake driver (HVD_CUDA_DRIVER,
tests/native/fake_cuda). torch's own work is the host's: it waits for the stream before each operation.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hvdtest.fake_cuda_driver import FakeCudaDriver
from hvdtest.fake_device import FakeDeviceTensor

_installed: list[FakeCudaDriver] = []


class FakeGpuTensor(FakeDeviceTensor):
    """A tensor of ``cuda:0``."""

    device = property(lambda _: torch.device("cuda", 0))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _installed[0].wait()
        return super().__torch_function__(func, types, args, kwargs)

    def get_device(self) -> int:
        return 0


class _Held:
    """Device memory of the core as a NumPy buffer; a view keeps the core's buffer alive."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.__array_interface__ = {**buffer.__cuda_array_interface__, "strides": None}


def wanted() -> bool:
    """Return whether this rank uses the fake driver."""
    return "fake" in Path(os.environ.get("HVD_CUDA_DRIVER", "")).name


def turn(switch: str, *how: Any) -> int:
    """Set or read a switch of this rank's fake driver (tests/native/fake_cuda/fake_cuda.h)."""
    words = [each.encode() if isinstance(each, str) else each for each in how]
    return int(getattr(ctypes.CDLL(os.environ["HVD_CUDA_DRIVER"]), switch)(*words))


def counts() -> dict[str, int]:
    """Return this rank's resources on its fake devices: FakeCounts."""
    names = ("allocations", "bytes", "pinned", "mappings", "streams", "events", "modules", "contexts")
    numbers = (ctypes.c_size_t * len(names))()
    turn("fake_cuda_counts", numbers)
    return dict(zip(names, numbers, strict=True))


def settled(most: dict[str, int], patience: float = 20.0) -> dict[str, int]:
    """Return the resources once they have fallen to this limit (memory is freed in stream order), else after the timeout."""
    end = time.monotonic() + patience
    while True:
        found = counts()
        if time.monotonic() > end or all(found[name] <= number for name, number in most.items()):
            return found
        time.sleep(0.01)


def install() -> None:
    """Install the fake GPU in this process's torch."""
    from hvd_kernel.torch import memory

    _installed.append(FakeCudaDriver(os.environ["HVD_CUDA_DRIVER"]))
    stream, empty, as_tensor = _installed[0].stream, torch.empty, torch.as_tensor

    def made(*shape: Any, device: Any = None, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        return _on(device, empty(*shape, **how))

    def seen(data: Any, device: Any = None, **how: Any) -> torch.Tensor:
        held = hasattr(data, "__cuda_array_interface__") and not isinstance(data, torch.Tensor)
        return _on(device, as_tensor(np.asarray(_Held(data)) if held else data, **how))

    resume = memory.resume

    def resume_and_keep(outcome: Any, starting_stream: int, touched: Any) -> None:
        resume(outcome, starting_stream, touched)
        _installed[0].keep(touched)

    torch.empty, torch.as_tensor = made, seen  # type: ignore[assignment]
    vars(memory)["resume"] = resume_and_keep
    torch.cuda.current_stream = lambda _device=None: stream  # type: ignore[assignment,return-value]
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 1


def _on(device: Any, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if device is None or torch.device(device).type == "cpu" else tensor.as_subclass(FakeGpuTensor)


def there(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).as_subclass(FakeGpuTensor)


def here(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, FakeGpuTensor):
        _installed[0].wait()
    return tensor.detach().as_subclass(torch.Tensor).clone()
