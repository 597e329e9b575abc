"""A library of arrays on a fake GPU, which knows nothing of this package: DLPack and the array API's names alone, as CuPy has.

Memory is the host's; the stream on which the library works is the fake driver's (tests/native/fake_cuda).
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import numpy as np
from hvdtest.fake_cuda_driver import FakeCudaDriver

CPU, CUDA = 1, 2
DEVICE = "fake:0"
_PLACE = 8  # in a capsule's tensor, behind the pointer: type and number of the device
_driver: list[FakeCudaDriver] = []
asked: list[int | None] = []  # streams that consumers have named


def install() -> None:
    _driver.append(FakeCudaDriver(os.environ["HVD_CUDA_DRIVER"]))


class Array:
    def __init__(self, memory: Any) -> None:
        self._memory = memory

    @property
    def address(self) -> int:
        return int(self._memory.ctypes.data)

    def __array_namespace__(self) -> Any:
        return sys.modules[__name__]

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        asked.append(stream)
        _driver[0].keep([self._memory])
        return _on(CUDA, self._memory.__dlpack__())

    @property
    def device(self) -> str:
        return DEVICE

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._memory.shape)

    def __getitem__(self, rows: slice) -> Array:
        return Array(self._memory[rows])

    def on_host(self) -> Any:
        """Order after the work of the library's stream."""
        _driver[0].wait()
        return self._memory.copy()


def array(values: Any) -> Array:
    return Array(np.array(values))


def ascontiguousarray(value: Array) -> Array:
    return value if value._memory.flags.c_contiguous else Array(value._memory.copy())


def empty_like(like: Array, shape: tuple[int, ...] | None = None, device: str = DEVICE) -> Array:
    assert device == DEVICE
    return Array(np.empty_like(like._memory, shape=shape))


def zeros_like(like: Array) -> Array:
    return Array(np.zeros_like(like._memory))


def from_dlpack(lent: Any) -> Array:
    assert lent.__dlpack_device__() == (CUDA, 0)
    capsule = _on(CPU, lent.__dlpack__(stream=_driver[0].stream.cuda_stream))
    return Array(np.from_dlpack(_Here(capsule)))


class _Here:
    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule


def _on(kind: int, capsule: Any) -> Any:
    at = ctypes.pythonapi.PyCapsule_GetPointer
    at.restype, at.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_int32.from_address(at(capsule, b"dltensor") + _PLACE).value = kind
    return capsule
