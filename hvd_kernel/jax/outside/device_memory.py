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

from hvd_kernel.core.tensor import Place, device_trouble
from hvd_kernel.jax.library import CHOICE, STREAM
from hvd_kernel.numpy import on_device
from hvd_kernel.numpy.on_device import CUDA, DEFAULT_STREAM, DeviceOperand, Lent


@dataclass(frozen=True)
class GpuArray:
    """An array, and its memory as the core is told of it."""

    array: Any
    memory: DeviceOperand

    @property
    def pointer(self) -> int:
        """Where it lies on the device."""
        return self.memory.pointer

    @property
    def place(self) -> Place:
        """Address, shape, type, device, and the default stream."""
        return on_device.place(self.memory)


class DeviceMemory:
    """A GPU's."""

    def operand(self, value: Any) -> GpuArray:
        """Return an array's memory, which is written before what the default stream does from here on."""
        return GpuArray(value, on_device.operand(value))

    def empty(self, shape: tuple[int, ...], like: GpuArray) -> GpuArray:
        """Return memory of an array that nobody else has, on the operand's device."""
        made = on_device.library(like.array).empty_like(like.array, shape=shape, device=like.array.device)
        return self.operand(made)

    def written(self, outputs: Sequence[GpuArray], outcome: Any) -> list[Any]:
        """Return arrays of the same memory that are ready when the operation is over; it holds the outputs' own."""
        return [
            on_device.library(each.array).from_dlpack(
                Lent(each.memory.device, outcome.event, functools.partial(each.array.__dlpack__, stream=DEFAULT_STREAM))
            )
            for each in outputs
        ]

    def received(self, outcome: Any, operands: Sequence[GpuArray]) -> list[Any]:
        """Return arrays of the core's memory."""
        return [
            on_device.of_core(buffer, outcome.event, each.array)
            for buffer, each in zip(outcome.buffers, operands, strict=True)
        ]

    def zeros(self, results: Sequence[Any]) -> list[Any]:
        """Return zeros."""
        return [on_device.library(each).zeros_like(each) for each in results]


def are_taken(values: Sequence[Any]) -> bool:
    """Tell whether the core works on these values where they are: it shall, and all are on a GPU that it can use."""
    return os.environ.get(CHOICE) == STREAM and all(_is_taken(each) for each in values)


def _is_taken(value: Any) -> bool:
    if not isinstance(value, jax.Array) or [each.platform for each in value.devices()] != ["gpu"]:
        return False
    kind, device = value.__dlpack_device__()
    return int(kind) == CUDA and not device_trouble(int(device))
