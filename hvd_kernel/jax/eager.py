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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from hvd_kernel.core import handles
from hvd_kernel.core.process_set_registry import registered
from hvd_kernel.core.tensor import Array, Place, device_trouble, from_buffer, number_of
from hvd_kernel.jax.library import CHOICE, STREAM
from hvd_kernel.jax.operation import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, OperationParams
from hvd_kernel.numpy import on_device
from hvd_kernel.numpy.on_device import CUDA, DEFAULT_STREAM, DeviceOperand, Lent

_ALIGNED = 64
_PUT = getattr(importlib.import_module("jax._src.lib").xla_client, "batched_device_put", None)


class Operand(Protocol):
    """Memory of an array, as an operand of the core."""

    @property
    def pointer(self) -> int:
        """Address of the first byte."""

    @property
    def place(self) -> Place:
        """Address, shape and type, and on a GPU device and stream."""


class Memory(Protocol):
    """Kind of memory that holds operands and results: of the host, or of a GPU."""

    def operand(self, value: Any) -> Any:
        """Return a value's memory."""

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """Return memory for a result of an operand's type."""

    def written(self, outputs: Sequence[Any], outcome: Any) -> list[Any]:
        """Return outputs that the core has written as arrays."""

    def received(self, outcome: Any, operands: Sequence[Any]) -> list[Any]:
        """Return results in the core's own memory as arrays of the operands' types."""

    def zeros(self, results: Sequence[Any]) -> list[Any]:
        """Return zeros of the same shapes and types."""


# The host's memory.


class HostOperand(NamedTuple):
    """A contiguous array on the host, which owns its memory."""

    host: Array
    pointer: int
    number: int  # the core's number of its type

    @property
    def place(self) -> Place:
        """Address, shape and type."""
        return self.pointer, self.host.shape, self.number


class HostMemory:
    """Memory of the host; results are NumPy arrays."""

    def operand(self, value: Any) -> HostOperand:
        """Return a value's memory: that of a JAX array on the CPU, a copy of other arrays."""
        host = np.asarray(value)
        if not host.flags.c_contiguous:
            host = np.ascontiguousarray(host)
        return HostOperand(host, host.ctypes.data, number_of(host.dtype))

    def empty(self, shape: tuple[int, ...], like: HostOperand) -> HostOperand:
        """Return memory that is aligned for XLA."""
        dtype = like.host.dtype
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        raw = np.empty(size + _ALIGNED, np.uint8)
        begin = raw.ctypes.data
        shift = -begin % _ALIGNED
        return HostOperand(np.ndarray(shape, dtype, raw, shift), begin + shift, like.number)

    def written(self, outputs: Sequence[HostOperand], outcome: Any) -> list[Any]:
        """Return the outputs' arrays; the operation is complete."""
        del outcome
        return [output.host for output in outputs]

    def received(self, outcome: Any, operands: Sequence[HostOperand]) -> list[Any]:
        """Return arrays of the core's memory."""
        pairs = zip(outcome.buffers, operands, strict=True)
        return [from_buffer(buffer, operand.host.dtype) for buffer, operand in pairs]

    def zeros(self, results: Sequence[Any]) -> list[Any]:
        """Return zeros."""
        return [np.zeros_like(result) for result in results]


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


@dataclass(frozen=True)
class GpuArray:
    """An array on a GPU, and its memory."""

    array: Any
    memory: DeviceOperand

    @property
    def pointer(self) -> int:
        """Address on the device."""
        return self.memory.pointer

    @property
    def place(self) -> Place:
        """Address, shape, type, device, and the default stream."""
        return on_device.place(self.memory)


class DeviceMemory:
    """Memory of a GPU; results are JAX arrays that are ready when the operation completes."""

    def operand(self, value: Any) -> GpuArray:
        """Return an array's memory; JAX's work on it is ordered before the default stream."""
        return GpuArray(value, on_device.operand(value))

    def empty(self, shape: tuple[int, ...], like: GpuArray) -> GpuArray:
        """Return memory of a new array on the operand's device."""
        array = on_device.library(like.array).empty_like(like.array, shape=shape, device=like.array.device)
        return self.operand(array)

    def written(self, outputs: Sequence[GpuArray], outcome: Any) -> list[Any]:
        """Return arrays of the outputs' memory that are ready when the operation completes."""
        return [
            on_device.library(output.array).from_dlpack(
                Lent(
                    output.memory.device,
                    outcome.event,
                    functools.partial(output.array.__dlpack__, stream=DEFAULT_STREAM),
                )
            )
            for output in outputs
        ]

    def received(self, outcome: Any, operands: Sequence[GpuArray]) -> list[Any]:
        """Return arrays of the core's memory."""
        return [
            on_device.of_core(buffer, outcome.event, operand.array)
            for buffer, operand in zip(outcome.buffers, operands, strict=True)
        ]

    def zeros(self, results: Sequence[Any]) -> list[Any]:
        """Return zeros."""
        return [on_device.library(result).zeros_like(result) for result in results]


def are_supported(values: Sequence[Any]) -> bool:
    """Return whether the core works on the values' device memory: with HVD_JAX=stream, on a GPU that it supports."""
    return os.environ.get(CHOICE) == STREAM and all(_is_supported(value) for value in values)


def _is_supported(value: Any) -> bool:
    if not isinstance(value, jax.Array) or [device.platform for device in value.devices()] != ["gpu"]:
        return False
    kind, device = value.__dlpack_device__()
    return int(kind) == CUDA and not device_trouble(int(device))


# The collectives, in either memory.

HOST, DEVICE = HostMemory(), DeviceMemory()


def run(operation: OperationParams, values: Sequence[Any]) -> list[Any]:
    """Run an operation and wait for it; on a GPU with HVD_JAX=stream, until all ranks have agreed on it."""
    if are_supported(values):
        return run_in(operation, values, DEVICE)
    results = on_host(operation, values)
    return [put(result, value) for result, value in zip(results, values, strict=True)]


def on_host(operation: OperationParams, values: Sequence[Any]) -> list[Array]:
    """Run an operation in the host's memory; return NumPy arrays."""
    return run_in(operation, values, HOST)


def run_in(operation: OperationParams, values: Sequence[Any], memory: Memory) -> list[Any]:
    """Run an operation in a kind of memory."""
    results = _COLLECTIVES[operation.kind](operation, [memory.operand(value) for value in values], memory)
    if operation.only >= 0 and handles.current_engine().rank != operation.only:
        return memory.zeros(results)
    return results


def _reduce(operation: OperationParams, operands: Sequence[Operand], memory: Memory) -> list[Any]:
    outputs = [memory.empty(operand.place[1], operand) for operand in operands]
    return _reduced(handles.allreduce_places, operation, operands, outputs, memory)


def _broadcast(operation: OperationParams, operands: Sequence[Operand], memory: Memory) -> list[Any]:
    outputs = [memory.empty(operand.place[1], operand) for operand in operands]
    return _wait(
        handles.broadcast_places(
            operation.wire_name, _in_and_out(operands, outputs), operation.root, _finish(outputs, operands, memory),
            operation.set, waits=True,
        )
    )  # fmt: skip


def _scatter(operation: OperationParams, operands: Sequence[Operand], memory: Memory) -> list[Any]:
    engine = handles.current_engine()
    members = registered()[operation.set] if operation.set else range(engine.size)
    size, rank = len(members), list(members).index(engine.rank)
    shapes = [operand.place[1] for operand in operands]
    shares = [(shape[0] // size + (rank < shape[0] % size), *shape[1:]) for shape in shapes]
    outputs = [memory.empty(share, operand) for share, operand in zip(shares, operands, strict=True)]
    return _reduced(handles.reducescatter_places, operation, operands, outputs, memory)


def _reduced(
    enqueue: Callable[..., int],
    operation: OperationParams,
    operands: Sequence[Operand],
    outputs: Sequence[Operand],
    memory: Memory,
) -> list[Any]:
    scales, finish = (operation.prescale, operation.postscale), _finish(outputs, operands, memory)
    places = _in_and_out(operands, outputs)
    return _wait(enqueue(operation.wire_name, places, operation.op, scales, finish, operation.set, waits=True))


def _gather(operation: OperationParams, operands: Sequence[Operand], memory: Memory) -> list[Any]:
    finish = functools.partial(memory.received, operands=operands)
    places = [operand.place for operand in operands]
    return _wait(handles.allgather_places(operation.wire_name, places, finish, operation.set, waits=True))


def _exchange(operation: OperationParams, operands: Sequence[Operand], memory: Memory) -> list[Any]:
    (operand,) = operands
    finish = functools.partial(memory.received, operands=operands)
    return _wait(handles.alltoall_place(operation.wire_name, operand.place, None, finish, operation.set, waits=True))


_COLLECTIVES = {
    ALLREDUCE: _reduce,
    ALLGATHER: _gather,
    BROADCAST: _broadcast,
    ALLTOALL: _exchange,
    REDUCESCATTER: _scatter,
}


def _in_and_out(operands: Sequence[Operand], outputs: Sequence[Operand]) -> list[handles.InOut]:
    pairs = zip(operands, outputs, strict=True)
    return [(operand.pointer, output.pointer, *operand.place[1:]) for operand, output in pairs]


def _finish(outputs: Sequence[Operand], operands: Sequence[Operand], memory: Memory) -> handles.Finish:
    """Return a function that makes arrays of the outputs; it keeps the operands alive until then."""

    def finish(outcome: Any, _held: Sequence[Operand] = operands) -> list[Any]:
        return memory.written(outputs, outcome)

    return finish


def _wait(handle: int) -> list[Any]:
    result: list[Any] = handles.synchronize(handle)
    return result
