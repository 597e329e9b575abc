"""Collectives outside of compiled programs: JAX arrays go to the core as they lie, past XLA.

On the CPU an array's memory is read where it is; the result is a new array, on the operand's device. On a GPU arrays
are copied to the host and back, or with HVD_JAX=stream are read and written where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hvd_kernel.core import handles
from hvd_kernel.core.process_set_registry import registered
from hvd_kernel.core.tensor import Array
from hvd_kernel.jax.operation import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, OperationParams
from hvd_kernel.jax.outside import device_memory, host_memory
from hvd_kernel.jax.outside.device_memory import DeviceMemory
from hvd_kernel.jax.outside.host_memory import HostMemory, Memory, Operand

HOST, DEVICE = HostMemory(), DeviceMemory()


def run(operation: OperationParams, values: Sequence[Any]) -> list[Any]:
    """Carry out an operation and wait for it; on a GPU with HVD_JAX=stream, until all ranks have agreed on it."""
    if device_memory.are_taken(values):
        return carried_out(operation, values, DEVICE)
    results = on_host(operation, values)
    return [host_memory.given(result, value) for result, value in zip(results, values, strict=True)]


def on_host(operation: OperationParams, values: Sequence[Any]) -> list[Array]:
    """Do so; the results are NumPy arrays."""
    return carried_out(operation, values, HOST)


def carried_out(operation: OperationParams, values: Sequence[Any], where: Memory) -> list[Any]:
    """Do so in this memory."""
    results = _COLLECTIVES[operation.kind](operation, [where.operand(each) for each in values], where)
    if operation.only >= 0 and handles.current_engine().rank != operation.only:
        return where.zeros(results)
    return results


def _reduce(operation: OperationParams, operands: Sequence[Operand], where: Memory) -> list[Any]:
    outputs = [where.empty(each.place[1], each) for each in operands]
    return _summed(handles.allreduce_places, operation, operands, outputs, where)


def _broadcast(operation: OperationParams, operands: Sequence[Operand], where: Memory) -> list[Any]:
    outputs = [where.empty(each.place[1], each) for each in operands]
    return _done(
        handles.broadcast_places(
            operation.wire_name, _in_and_out(operands, outputs), operation.root, _keep(outputs, operands, where),
            operation.set, waits=True,
        )
    )  # fmt: skip


def _scatter(operation: OperationParams, operands: Sequence[Operand], where: Memory) -> list[Any]:
    engine = handles.current_engine()
    members = registered()[operation.set] if operation.set else range(engine.size)
    size, rank = len(members), list(members).index(engine.rank)
    shapes = [each.place[1] for each in operands]
    shares = [(shape[0] // size + (rank < shape[0] % size), *shape[1:]) for shape in shapes]
    outputs = [where.empty(share, each) for share, each in zip(shares, operands, strict=True)]
    return _summed(handles.reducescatter_places, operation, operands, outputs, where)


def _summed(
    enqueue: Callable[..., int],
    operation: OperationParams,
    operands: Sequence[Operand],
    outputs: Sequence[Operand],
    where: Memory,
) -> list[Any]:
    scales, finish = (operation.prescale, operation.postscale), _keep(outputs, operands, where)
    places = _in_and_out(operands, outputs)
    return _done(enqueue(operation.wire_name, places, operation.op, scales, finish, operation.set, waits=True))


def _gather(operation: OperationParams, operands: Sequence[Operand], where: Memory) -> list[Any]:
    finish = functools.partial(where.received, operands=operands)
    places = [each.place for each in operands]
    return _done(handles.allgather_places(operation.wire_name, places, finish, operation.set, waits=True))


def _exchange(operation: OperationParams, operands: Sequence[Operand], where: Memory) -> list[Any]:
    (one,) = operands
    finish = functools.partial(where.received, operands=operands)
    return _done(handles.alltoall_place(operation.wire_name, one.place, None, finish, operation.set, waits=True))


_COLLECTIVES = {
    ALLREDUCE: _reduce,
    ALLGATHER: _gather,
    BROADCAST: _broadcast,
    ALLTOALL: _exchange,
    REDUCESCATTER: _scatter,
}


def _in_and_out(operands: Sequence[Operand], outputs: Sequence[Operand]) -> list[handles.InOut]:
    return [(each.pointer, output.pointer, *each.place[1:]) for each, output in zip(operands, outputs, strict=True)]


def _keep(outputs: Sequence[Operand], operands: Sequence[Operand], where: Memory) -> handles.Finish:
    def finish(outcome: Any, _held: Sequence[Operand] = operands) -> list[Any]:
        return where.written(outputs, outcome)

    return finish


def _done(handle: int) -> list[Any]:
    result: list[Any] = handles.synchronize(handle)
    return result
