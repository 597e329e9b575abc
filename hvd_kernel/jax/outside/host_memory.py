"""Memory of JAX's arrays on the CPU: operands are read where they lie, and a result's memory becomes an array.

XLA takes over memory that begins at a multiple of 64 bytes, and copies other. ``jax.device_put`` does so too, in four
times the time.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hvd_kernel.core.tensor import Array, Place, from_buffer, number_of

_ALIGNED = 64
_PUT = getattr(importlib.import_module("jax._src.lib").xla_client, "batched_device_put", None)


class Operand(Protocol):
    """An array's memory, as the core is told of it."""

    @property
    def pointer(self) -> int:
        """Its first byte."""

    @property
    def place(self) -> Place:
        """All that the core is told."""


class Memory(Protocol):
    """Where operands lie and results go: the host's (here), or a GPU's (device_memory.py)."""

    def operand(self, value: Any) -> Any:
        """Return a value's memory."""

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """Return memory for a result of an operand's type."""

    def written(self, outputs: Sequence[Any], outcome: Any) -> list[Any]:
        """Return as arrays what the core has written."""

    def received(self, outcome: Any, operands: Sequence[Any]) -> list[Any]:
        """Return as arrays what the core has in memory of its own, of the operands' types."""

    def zeros(self, results: Sequence[Any]) -> list[Any]:
        """Return zeros of the same shapes and types."""


class HostOperand(NamedTuple):
    """A contiguous array on the host, which holds its memory."""

    host: Array
    pointer: int
    number: int  # the core's, of its type

    @property
    def place(self) -> Place:
        """Address, shape and type."""
        return self.pointer, self.host.shape, self.number


class HostMemory:
    """The host's; results are NumPy arrays."""

    def operand(self, value: Any) -> HostOperand:
        """Return a value's elements: of a JAX array on the CPU its own memory, of others a copy."""
        host = np.asarray(value)
        if not host.flags.c_contiguous:
            host = np.ascontiguousarray(host)
        return HostOperand(host, host.ctypes.data, number_of(host.dtype))

    def empty(self, shape: tuple[int, ...], like: HostOperand) -> HostOperand:
        """Return memory that XLA takes over."""
        dtype = like.host.dtype
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        raw = np.empty(size + _ALIGNED, np.uint8)
        begin = raw.ctypes.data
        shift = -begin % _ALIGNED
        return HostOperand(np.ndarray(shape, dtype, raw, shift), begin + shift, like.number)

    def written(self, outputs: Sequence[HostOperand], outcome: Any) -> list[Any]:
        """Return them; the operation is over."""
        del outcome
        return [each.host for each in outputs]

    def received(self, outcome: Any, operands: Sequence[HostOperand]) -> list[Any]:
        """Return arrays of the core's memory."""
        return [from_buffer(one, each.host.dtype) for one, each in zip(outcome.buffers, operands, strict=True)]

    def zeros(self, results: Sequence[Any]) -> list[Any]:
        """Return zeros."""
        return [np.zeros_like(each) for each in results]


def given(result: Array, value: Any) -> Any:
    """Return a result as an array of JAX's on the operand's device; nobody else may keep it."""
    if not isinstance(value, jax.Array):
        return jax.device_put(result)
    devices: Sequence[Any] = list(value.devices())
    if _PUT is None or len(devices) > 1:
        return jax.device_put(result)
    is_like = result.shape == value.shape and not value.weak_type
    kind = value.aval if is_like else jax.core.ShapedArray(result.shape, result.dtype)
    return _PUT(kind, value.sharding, [result], devices, value.committed)
