"""Fake CUDA driver from Python: one stream, for fakes of libraries that work on a GPU (tests/native/fake_cuda)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_ANY_STREAM = 1  # CU_STREAM_NON_BLOCKING


class FakeStream:
    """A fake of the parts of torch.cuda.Stream that the frontend uses."""

    def __init__(self, pointer: int) -> None:
        self.cuda_stream = pointer


class FakeCudaDriver:
    """One stream, on the fake driver that the plugin loads too."""

    def __init__(self, file: str) -> None:
        self._calls = ctypes.CDLL(file)
        self._stream, context, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context
        self._call("cuCtxPushCurrent_v2", context)
        self._call("cuStreamCreateWithPriority", ctypes.byref(self._stream), _ANY_STREAM, 0)
        self.stream = FakeStream(int(self._stream.value or 0))
        self._used: list[Any] = []

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._calls, name)(*args)
        assert status == 0, f"{name} of the fake driver gives {status}"

    def wait(self) -> None:
        """Until the stream has done all that it was given."""
        self._call("cuCtxPushCurrent_v2", self._context)  # of whatever thread this is
        self._call("cuStreamSynchronize", self._stream)
        self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self._used.clear()

    def keep(self, used: Any) -> None:
        """Keep memory until the stream has passed its users, as torch's device allocator does."""
        self._used.extend(used)


def why_not() -> str:
    """Return what is missing for the fake driver; empty if it is complete."""
    from hvd_kernel.core import build_info

    if not driver().exists():
        return f"{driver()} is not there: `.ci/native plain` builds it where nvcc is"
    return "" if build_info.cuda_built() else "the core was built without its CUDA plugin"


def driver() -> Path:
    return Path(os.environ.get("HVDTEST_FAKE_CUDA") or ROOT / "build" / "editable" / "libfake_cuda.so")
