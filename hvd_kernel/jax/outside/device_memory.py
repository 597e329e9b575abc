"""Device memory of JAX's arrays, by DLPack: operands where they lie, results behind the operation (HVD_JAX=stream).

JAX orders an operand before the default stream, on which the core begins, and takes over a result's memory behind the
core's event, on a stream that it names itself. The host waits for the other ranks' agreement alone.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hvd_kernel import _native
from hvd_kernel.core.tensor import Place, device_trouble
from hvd_kernel.jax.library import CHOICE, STREAM
from hvd_kernel.numpy.on_device import CUDA, DEFAULT_STREAM, Lent


@dataclass(frozen=True)
class GpuArray:
    """An array as the core is told of it; ``kept``: what holds its memory, a DLPack capsule."""

    array: Any
    pointer: int
    shape: tuple[int, ...]
    number: int  # the core's, of its type
    device: int
    kept: Any

    @property
    def place(self) -> Place:
        """Address, shape, type, device, and the default stream."""
        return self.pointer, self.shape, self.number, self.device, 0


@dataclass(frozen=True)
class DeviceMemory:
    """A GPU's. ``library``: whose arrays they are, by the names of Python's array API."""

    library: Any = jnp

    def operand(self, value: Any) -> GpuArray:
        """Return an array's memory, which is written before what the default stream does from here on."""
        capsule = _capsule(value)
        return GpuArray(value, *_native.dlpack_place(capsule), capsule)

    def empty(self, shape: tuple[int, ...], like: GpuArray) -> GpuArray:
        """Return memory of an array that nobody else has, on the operand's device."""
        return self.operand(self.library.empty_like(like.array, shape=shape, device=like.array.device))

    def written(self, outputs: Sequence[GpuArray], outcome: Any) -> list[Any]:
        """Return arrays of the same memory that are ready when the operation is over; it holds the outputs' own."""
        return [
            self.library.from_dlpack(Lent(each.device, outcome.event, functools.partial(_capsule, each.array)))
            for each in outputs
        ]

    def received(self, outcome: Any, operands: Sequence[GpuArray]) -> list[Any]:
        """Return arrays of the core's memory."""
        del operands
        return [
            self.library.from_dlpack(Lent(each.device, outcome.event, functools.partial(_native.dlpack_capsule, each)))
            for each in outcome.buffers
        ]

    def zeros(self, results: Sequence[Any]) -> list[Any]:
        """Return zeros."""
        return [self.library.zeros_like(each) for each in results]


def are_taken(values: Sequence[Any]) -> bool:
    """Tell whether the core works on these values where they are: it shall, and all are on a GPU that it can use."""
    return os.environ.get(CHOICE) == STREAM and all(_is_taken(each) for each in values)


def _is_taken(value: Any) -> bool:
    if not isinstance(value, jax.Array) or [each.platform for each in value.devices()] != ["gpu"]:
        return False
    kind, device = value.__dlpack_device__()
    return int(kind) == CUDA and not device_trouble(int(device))


def _capsule(array: Any) -> Any:
    return array.__dlpack__(stream=DEFAULT_STREAM)
