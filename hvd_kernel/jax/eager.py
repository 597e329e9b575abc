"""Collectives outside of compiled programs: direct calls of the core, past XLA.

On the CPU an array's memory is read without a copy; the result is a new array, on the operand's device. XLA takes over
memory at a multiple of 64 bytes without a copy. ``jax.device_put`` does so too, in four times the time.

Arrays of a GPU are copied to the host and back, or with HVD_JAX=stream passed to the core by DLPack: JAX orders an
operand before the default stream, on which the core starts, and uses a result's memory after the core's event, on a
stream that it names. The host waits only until all ranks have agreed on the operation.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hvd_kernel.core import collectives, handles
from hvd_kernel.core.collectives import HostMemory, HostOperand, OutputMemory
from hvd_kernel.core.tensor import Array, device_trouble
from hvd_kernel.jax.library import CHOICE, STREAM
from hvd_kernel.jax.operation import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, OperationParams
from hvd_kernel.numpy.device_memory import (
    CUDA,
    DEFAULT_STREAM,
    DeviceOperand,
    DlpackMemory,
    Lent,
    library,
    operand_of,
)

_ALIGNED = 64
_PUT = getattr(importlib.import_module("jax._src.lib").xla_client, "batched_device_put", None)


class AlignedMemory(HostMemory):
    """Memory of the host whose results XLA takes over."""

    def empty(self, shape: tuple[int, ...], like: HostOperand) -> HostOperand:
        """Return memory of a new array, at an address that is aligned for XLA."""
        dtype = like.array.dtype
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        raw = np.empty(size + _ALIGNED, np.uint8)
        begin = raw.ctypes.data
        shift = -begin % _ALIGNED
        return HostOperand(np.ndarray(shape, dtype, raw, shift), (begin + shift, shape, like.place[2]))


def put(result: Array, like: Any) -> Any:
    """Return a result as a JAX array on the device of an operand, which takes over the result's memory."""
    if not isinstance(like, jax.Array):
        return jax.device_put(result)
    devices: Sequence[Any] = list(like.devices())
    if _PUT is None or len(devices) > 1:
        return jax.device_put(result)
    is_like = result.shape == like.shape and not like.weak_type
    kind = like.aval if is_like else jax.core.ShapedArray(result.shape, result.dtype)
    return _PUT(kind, like.sharding, [result], devices, like.committed)


# Memory of a GPU.


class DeviceMemory(DlpackMemory):
    """Memory of a GPU; results are JAX arrays that are ready when the operation completes."""

    copies = False  # JAX has no other strides

    def empty(self, shape: tuple[int, ...], like: DeviceOperand) -> DeviceOperand:
        """Return memory of a new array on the operand's device."""
        return operand_of(library(like.array).empty_like(like.array, shape=shape, device=like.array.device))

    def written(self, outputs: Sequence[DeviceOperand], operands: Sequence[DeviceOperand], outcome: Any) -> list[Any]:
        """Return new arrays of the outputs' memory, which JAX orders after the operation."""
        del operands
        return [
            library(output.array).from_dlpack(
                Lent(output.device, outcome.event, functools.partial(output.array.__dlpack__, stream=DEFAULT_STREAM))
            )
            for output in outputs
        ]


def are_supported(values: Sequence[Any]) -> bool:
    """Return whether the core works on the values' device memory: with HVD_JAX=stream, on a GPU that it supports."""
    return os.environ.get(CHOICE) == STREAM and all(_is_supported(value) for value in values)


def _is_supported(value: Any) -> bool:
    if not isinstance(value, jax.Array) or [device.platform for device in value.devices()] != ["gpu"]:
        return False
    kind, device = value.__dlpack_device__()
    return int(kind) == CUDA and not device_trouble(int(device))


# The collectives, in either memory.

HOST, DEVICE = AlignedMemory(), DeviceMemory()


def run(operation: OperationParams, values: Sequence[Any]) -> list[Any]:
    """Run an operation and wait for it; on a GPU with HVD_JAX=stream, until all ranks have agreed on it."""
    if are_supported(values):
        return run_in(operation, values, DEVICE)
    results = on_host(operation, values)
    return [put(result, value) for result, value in zip(results, values, strict=True)]


def on_host(operation: OperationParams, values: Sequence[Any]) -> list[Array]:
    """Run an operation in the host's memory; return NumPy arrays."""
    return run_in(operation, values, HOST)


def run_in(operation: OperationParams, values: Sequence[Any], memory: OutputMemory) -> list[Any]:
    """Run an operation in a kind of memory."""
    outcome = handles.synchronize(_enqueued(operation, values, memory))
    results: list[Any] = [outcome[0]] if operation.kind == ALLTOALL else outcome
    if operation.only >= 0 and handles.current_engine().rank != operation.only:
        return [library(result).zeros_like(result) for result in results]
    return results


def _enqueued(operation: OperationParams, values: Sequence[Any], memory: OutputMemory) -> int:
    name, group = operation.wire_name, operation.set
    if operation.kind == ALLGATHER:
        return collectives.allgather(memory, values, name, group=group, waits=True)
    if operation.kind == ALLTOALL:
        (value,) = values
        return collectives.alltoall(memory, value, name, None, group=group, waits=True)
    if operation.kind == BROADCAST:
        return collectives.broadcast(memory, values, name, operation.root, group=group, waits=True)
    reduction = collectives.allreduce if operation.kind == ALLREDUCE else collectives.reducescatter
    scales = operation.prescale, operation.postscale
    return reduction(memory, values, name, operation.op, scales, group=group, waits=True)
