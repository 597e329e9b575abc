"""Collectives outside of compiled programs: JAX arrays go to the core as they lie, past XLA.

On the CPU an array's memory is read where it is; the result is a new array, on the operand's device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hvd_kernel.core import handles
from hvd_kernel.core.process_set_registry import registered
from hvd_kernel.core.tensor import dtype_of, from_buffer
from hvd_kernel.jax.operation import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Operation


def run(operation: Operation, operands: Sequence[Any]) -> list[Any]:
    """Carry out an operation and wait for it."""
    hosts = [np.ascontiguousarray(np.asarray(each)).reshape(np.shape(each)) for each in operands]
    results = on_host(operation, hosts)
    return [_placed(result, operand) for result, operand in zip(results, operands, strict=True)]


def on_host(operation: Operation, hosts: Sequence[Any]) -> list[Any]:
    """Do so with contiguous NumPy arrays."""
    results = _COLLECTIVES[operation.kind](operation, hosts)
    if operation.only >= 0 and handles.current_engine().rank != operation.only:
        return [np.zeros_like(each) for each in results]
    return results


def _reduce(operation: Operation, hosts: Sequence[Any]) -> list[Any]:
    outputs = [np.empty_like(each) for each in hosts]
    scales = operation.prescale, operation.postscale
    return _done(
        handles.allreduce_places(
            operation.wire_name, _in_and_out(hosts, outputs), operation.op, scales, _keep(outputs, hosts),
            operation.set, waits=True,
        )
    )  # fmt: skip


def _broadcast(operation: Operation, hosts: Sequence[Any]) -> list[Any]:
    outputs = [np.empty_like(each) for each in hosts]
    return _done(
        handles.broadcast_places(
            operation.wire_name, _in_and_out(hosts, outputs), operation.root, _keep(outputs, hosts), operation.set,
            waits=True,
        )
    )  # fmt: skip


def _scatter(operation: Operation, hosts: Sequence[Any]) -> list[Any]:
    engine = handles.current_engine()
    members = registered()[operation.set] if operation.set else range(engine.size)
    size, rank = len(members), list(members).index(engine.rank)
    outputs = [
        np.empty((each.shape[0] // size + (rank < each.shape[0] % size), *each.shape[1:]), each.dtype) for each in hosts
    ]
    scales = operation.prescale, operation.postscale
    return _done(
        handles.reducescatter_places(
            operation.wire_name, _in_and_out(hosts, outputs), operation.op, scales, _keep(outputs, hosts),
            operation.set, waits=True,
        )
    )  # fmt: skip


def _gather(operation: Operation, hosts: Sequence[Any]) -> list[Any]:
    def finish(outcome: Any) -> list[Any]:
        return [from_buffer(one, host.dtype) for one, host in zip(outcome.buffers, hosts, strict=True)]

    places: Any = [(each.ctypes.data, each.shape, dtype_of(each)) for each in hosts]
    return _done(handles.allgather_places(operation.wire_name, places, finish, operation.set, waits=True))


def _exchange(operation: Operation, hosts: Sequence[Any]) -> list[Any]:
    (host,) = hosts

    def finish(outcome: Any) -> list[Any]:
        return [from_buffer(outcome.buffers[0], host.dtype)]

    place = host.ctypes.data, host.shape, dtype_of(host)
    return _done(handles.alltoall_place(operation.wire_name, place, None, finish, operation.set, waits=True))


_COLLECTIVES = {
    ALLREDUCE: _reduce,
    ALLGATHER: _gather,
    BROADCAST: _broadcast,
    ALLTOALL: _exchange,
    REDUCESCATTER: _scatter,
}


def _in_and_out(hosts: Sequence[Any], outputs: Sequence[Any]) -> list[handles.InOut]:
    return [
        (host.ctypes.data, output.ctypes.data, host.shape, dtype_of(host))
        for host, output in zip(hosts, outputs, strict=True)
    ]


def _keep(outputs: list[Any], hosts: Sequence[Any]) -> handles.Finish:
    def finish(_: Any, _held: Sequence[Any] = hosts) -> list[Any]:
        return outputs

    return finish


def _done(handle: int) -> list[Any]:
    result: list[Any] = handles.synchronize(handle)
    return result


def _placed(result: Any, operand: Any) -> Any:
    devices = operand.devices() if isinstance(operand, jax.Array) else set()
    one = next(iter(devices), None)
    return jax.device_put(result) if one is None or one == jax.devices()[0] else jax.device_put(result, one)
