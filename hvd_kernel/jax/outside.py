"""Collectives outside of compiled programs: JAX arrays go to the core as they lie, past XLA.

On the CPU an array's memory is read where it is; the result is a new array, on the operand's device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_kernel.core import handles
from hvd_kernel.core.process_set_registry import registered
from hvd_kernel.core.tensor import Array, from_buffer
from hvd_kernel.jax import memory
from hvd_kernel.jax.memory import HostOperand
from hvd_kernel.jax.operation import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, OperationParams


def run(operation: OperationParams, values: Sequence[Any]) -> list[Any]:
    """Carry out an operation and wait for it."""
    results = on_host(operation, values)
    return [memory.given(result, value) for result, value in zip(results, values, strict=True)]


def on_host(operation: OperationParams, values: Sequence[Any]) -> list[Array]:
    """Do so; the results are NumPy arrays."""
    results = _COLLECTIVES[operation.kind](operation, [memory.operand(each) for each in values])
    if operation.only >= 0 and handles.current_engine().rank != operation.only:
        return [np.zeros_like(each) for each in results]
    return results


def _reduce(operation: OperationParams, operands: Sequence[HostOperand]) -> list[Array]:
    outputs = [memory.empty(each.host.shape, each) for each in operands]
    scales = operation.prescale, operation.postscale
    return _done(
        handles.allreduce_places(
            operation.wire_name, _in_and_out(operands, outputs), operation.op, scales, _keep(outputs, operands),
            operation.set, waits=True,
        )
    )  # fmt: skip


def _broadcast(operation: OperationParams, operands: Sequence[HostOperand]) -> list[Array]:
    outputs = [memory.empty(each.host.shape, each) for each in operands]
    return _done(
        handles.broadcast_places(
            operation.wire_name, _in_and_out(operands, outputs), operation.root, _keep(outputs, operands),
            operation.set, waits=True,
        )
    )  # fmt: skip


def _scatter(operation: OperationParams, operands: Sequence[HostOperand]) -> list[Array]:
    engine = handles.current_engine()
    members = registered()[operation.set] if operation.set else range(engine.size)
    size, rank = len(members), list(members).index(engine.rank)
    shapes = [each.host.shape for each in operands]
    shares = [(shape[0] // size + (rank < shape[0] % size), *shape[1:]) for shape in shapes]
    outputs = [memory.empty(share, each) for share, each in zip(shares, operands, strict=True)]
    scales = operation.prescale, operation.postscale
    return _done(
        handles.reducescatter_places(
            operation.wire_name, _in_and_out(operands, outputs), operation.op, scales, _keep(outputs, operands),
            operation.set, waits=True,
        )
    )  # fmt: skip


def _gather(operation: OperationParams, operands: Sequence[HostOperand]) -> list[Array]:
    def finish(outcome: Any) -> list[Array]:
        return [from_buffer(one, each.host.dtype) for one, each in zip(outcome.buffers, operands, strict=True)]

    places = [(each.pointer, each.host.shape, each.number) for each in operands]
    return _done(handles.allgather_places(operation.wire_name, places, finish, operation.set, waits=True))


def _exchange(operation: OperationParams, operands: Sequence[HostOperand]) -> list[Array]:
    (one,) = operands

    def finish(outcome: Any) -> list[Array]:
        return [from_buffer(outcome.buffers[0], one.host.dtype)]

    place = one.pointer, one.host.shape, one.number
    return _done(handles.alltoall_place(operation.wire_name, place, None, finish, operation.set, waits=True))


_COLLECTIVES = {
    ALLREDUCE: _reduce,
    ALLGATHER: _gather,
    BROADCAST: _broadcast,
    ALLTOALL: _exchange,
    REDUCESCATTER: _scatter,
}


def _in_and_out(operands: Sequence[HostOperand], outputs: Sequence[HostOperand]) -> list[handles.InOut]:
    return [
        (each.pointer, output.pointer, each.host.shape, each.number)
        for each, output in zip(operands, outputs, strict=True)
    ]


def _keep(outputs: Sequence[HostOperand], operands: Sequence[HostOperand]) -> handles.Finish:
    def finish(_: Any, _held: Sequence[HostOperand] = operands) -> list[Array]:
        return [each.host for each in outputs]

    return finish


def _done(handle: int) -> list[Array]:
    result: list[Array] = handles.synchronize(handle)
    return result
