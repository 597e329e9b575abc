"""Collectives on NDArrays, under Horovod's file name.

``allreduce``, ``broadcast``, ``reducescatter`` and their variants return immediately: MXNet runs them when their
tensors are ready, and reading a result waits for it, as with MXNet's own operations. They may start in a different
order on each rank. ``allgather`` and ``alltoall``, whose result shapes depend on all ranks, return when they are
complete.

``priority``: among operations that are ready, MXNet starts those of a higher priority first.
"""
# ruff: noqa: PLR0917, ARG001 - Horovod's signatures

from __future__ import annotations

import ctypes
import itertools
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np

from hvd_kernel.core import collectives, ops, session
from hvd_kernel.core.basics import *  # noqa: F403 - names of Horovod's module too
from hvd_kernel.core.build_info import *  # noqa: F403
from hvd_kernel.core.collectives import share_of
from hvd_kernel.core.handles import Scales
from hvd_kernel.core.ops import (
    SPLITS_ARE_INT32,
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    row_counts,
    some,
)
from hvd_kernel.core.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    init,
    remove_process_set,
    set_id,
)
from hvd_kernel.core.tensor import DTYPES, SCATTERED, Place, check_reducible, from_buffer, not_moved, reduction_of
from hvd_kernel.errors import HorovodInternalError, NotInitialized
from hvd_kernel.frameworks.arguments import raised_as
from hvd_kernel.mxnet import library
from hvd_kernel.mxnet.library import MxnetArgumentError

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "join",
    "reducescatter",
    "remove_process_set",
    "shutdown",
]

library.plugin()  # at import time, so that the import reports what is missing

_ALLREDUCE, _BROADCAST, _REDUCESCATTER = 0, 2, 6  # native/c_api/hvd_core.h
_COPIED = {"int8"}  # types whose memory MXNet copies instead of taking it over
_unnamed = 0, itertools.count()  # generation of the engine, numbers of its calls without a name
_reduction = partial(reduction_of, warns=False)  # as in Horovod: here ``average`` is not deprecated


@raised_as(MxnetArgumentError)
def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Return the average (or ``op=Sum``, Min, Max, Product, Adasum) over all ranks.

    Parameters
    ----------
    tensor
        An NDArray, of the same shape and type on all ranks.
    average
        Horovod's older form of ``op``: True is Average, False is Sum.
    prescale_factor, postscale_factor
        Factors of each rank's values, and of the result.

    Raises
    ------
    MxnetArgumentError
        Immediately: an argument is invalid on this rank. A ValueError and an MXNetError.
    HorovodInternalError
        At the next wait for the result: the calls of the ranks differ (``Mismatch``), or a rank has died.

    Examples
    --------
    ::

        hvd.allreduce(mx.nd.array([1.0, 2.0]) * hvd.rank())   # 2 ranks: [0.5, 1.0]
    """
    scales = (prescale_factor, postscale_factor)
    return _reduced([tensor], _reduction(op, average), "allreduce", name, priority, scales, process_set)[0]


@raised_as(MxnetArgumentError)
def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Do as ``allreduce`` in the tensor's memory, and return the tensor."""
    scales = (prescale_factor, postscale_factor)
    _reduce([tensor], _reduction(op, average), "allreduce", name, priority, scales, process_set)
    return tensor


@raised_as(MxnetArgumentError)
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduce several tensors, all of them or none, and return the results; types may differ."""
    scales = (prescale_factor, postscale_factor)
    return _reduced(tensors, _reduction(op, average), "grouped_allreduce", name, priority, scales, process_set)


@raised_as(MxnetArgumentError)
def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Do as ``grouped_allreduce`` in the tensors' memory, and return the tensors."""
    scales = (prescale_factor, postscale_factor)
    _reduce(tensors, _reduction(op, average), "grouped_allreduce", name, priority, scales, process_set)
    return list(tensors)


@raised_as(MxnetArgumentError)
def allgather(
    tensor: Any, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the rows of all ranks, concatenated; the number of rows may differ."""
    return _gathered([tensor], _name("allgather", name), process_set)[0]


@raised_as(MxnetArgumentError)
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gather the rows of several tensors, all of them or none."""
    some(tensors, "grouped_allgather")
    return _gathered(tensors, _name("grouped_allgather", name), process_set)


@raised_as(MxnetArgumentError)
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's tensor on every rank; ``root_rank`` is a global rank also in a process set."""
    _check_tensors([tensor])
    output = _empty_like(tensor)
    _push(_BROADCAST, [_on_host(tensor)], [output], _name("broadcast", name), priority, process_set, root_rank)
    return _to_devices([output], [tensor])[0]


@raised_as(MxnetArgumentError)
def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite the tensor with the root's, and return it."""
    _check_tensors([tensor])
    host = _on_host(tensor)
    _push(_BROADCAST, [host], [host], _name("broadcast", name), priority, process_set, root_rank)
    _copy_back([host], [tensor])
    return tensor


@raised_as(MxnetArgumentError)
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[r]`` rows to rank r, or equal shares; return the received rows.

    With ``splits``, an NDArray of int32 or any sequence of integers, return a pair: the received rows, and the number
    of rows (int32) from each rank.
    """
    _check_tensors([tensor])
    group = set_id(process_set, "Alltoall")
    rows = None if splits is None else _row_counts(splits)
    handle = collectives.alltoall(_MEMORY, tensor, _name("alltoall", name), rows, group=group, waits=True)
    output, received = ops.synchronize(handle)
    return output if splits is None else (output, mx.nd.array(received, dtype="int32", ctx=tensor.context))


@raised_as(MxnetArgumentError)
def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce, and return this rank's share of the rows; the first ranks get one more if they do not divide equally."""
    scales = (prescale_factor, postscale_factor)
    return _scattered([tensor], op, _name("reducescatter", name), priority, scales, process_set)[0]


@raised_as(MxnetArgumentError)
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several tensors, all of them or none, and return this rank's rows of each."""
    some(tensors, "grouped_reducescatter")
    scales = (prescale_factor, postscale_factor)
    return _scattered(tensors, op, _name("grouped_reducescatter", name), priority, scales, process_set)


@raised_as(MxnetArgumentError)
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until this rank's operations are complete and every rank of the set has called this function."""
    mx.nd.waitall()
    ops.barrier(process_set)


def join() -> int:
    """Take part in the other ranks' allreduces with zeros until all ranks have joined.

    Returns
    -------
    int
        The rank that joined last, the same everywhere.
    """
    mx.nd.waitall()  # earlier operations precede the join
    return ops.join()


def shutdown() -> None:  # type: ignore[no-redef] # instead of the core's
    """Disconnect from the other ranks after this rank's operations have completed or failed."""
    if session.is_initialized():
        try:
            mx.nd.waitall()
        except mx.MXNetError as error:  # also raised where the operation's result is read
            warnings.warn(f"shutdown: an operation had failed: {error}", stacklevel=2)
    session.shutdown()


def _reduced(
    tensors: Sequence[Any],
    op: int,
    kind: str,
    name: str | None,
    priority: int,
    scales: Scales,
    process_set: ProcessSet,
) -> list[Any]:
    _check_tensors(tensors, op)
    if not tensors:
        return []
    outputs = [_empty_like(tensor) for tensor in tensors]
    hosts = [_on_host(tensor) for tensor in tensors]
    _push(_ALLREDUCE, hosts, outputs, _name(kind, name), priority, process_set, op=op, scales=scales)
    return _to_devices(outputs, tensors)


def _reduce(
    tensors: Sequence[Any],
    op: int,
    kind: str,
    name: str | None,
    priority: int,
    scales: Scales,
    process_set: ProcessSet,
) -> None:
    _check_tensors(tensors, op)
    if not tensors:
        return
    hosts = [_on_host(tensor) for tensor in tensors]
    _push(_ALLREDUCE, hosts, hosts, _name(kind, name), priority, process_set, op=op, scales=scales)
    _copy_back(hosts, tensors)


def _gathered(tensors: Sequence[Any], name: str, process_set: ProcessSet) -> list[Any]:
    _check_tensors(tensors)
    group = set_id(process_set, "Allgather")
    handle = collectives.allgather(_MEMORY, tensors, name, group=group, waits=True)
    result: list[Any] = ops.synchronize(handle)
    return result


def _scattered(
    tensors: Sequence[Any], op: int, name: str, priority: int, scales: Scales, process_set: ProcessSet
) -> list[Any]:
    if op not in SCATTERED:
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    _check_tensors(tensors, op)
    group = set_id(process_set, "Reducescatter")
    outputs = [_empty_like(tensor, share_of(tensor.shape, group)) for tensor in tensors]
    hosts = [_on_host(tensor) for tensor in tensors]
    _push(_REDUCESCATTER, hosts, outputs, name, priority, process_set, op=op, scales=scales)
    return _to_devices(outputs, tensors)


def _push(
    kind: int,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    name: str,
    priority: int,
    process_set: ProcessSet,
    root_rank: int = 0,
    op: int = Sum,
    scales: Scales = (1.0, 1.0),
) -> None:
    group = set_id(process_set, _TITLES[kind])
    engine = _engine()
    if kind == _BROADCAST and root_rank not in (engine.process_set_ranks(group) if group else range(engine.size)):
        raise ValueError(f"broadcast received invalid root rank {root_rank} for provided process set")
    library.push(
        library.Request(
            name.encode(),
            kind,
            group,
            op,
            root_rank,
            *scales,
            len(inputs),
            priority,
            library.handles(inputs),
            library.handles(outputs),
        )
    )


def _engine() -> Any:
    try:
        return session.engine()
    except NotInitialized as error:
        raise HorovodInternalError(str(error)) from None


_TITLES = {_ALLREDUCE: "Allreduce", _BROADCAST: "Broadcast", _REDUCESCATTER: "Reducescatter"}


def _copy_back(hosts: Sequence[Any], tensors: Sequence[Any]) -> None:
    for host, tensor in zip(hosts, tensors, strict=True):
        if host is not tensor:
            host.copyto(tensor)


def _name(kind: str, name: str | None) -> str:
    """Return the operation's name; by default the number of this call, as MXNet starts operations in any order."""
    global _unnamed  # noqa: PLW0603 - one per process, like the engine
    if name:
        return f"{kind}.{name}"
    if _unnamed[0] != session.generation():
        _unnamed = session.generation(), itertools.count()
    return f"{kind}.noname.{next(_unnamed[1])}"


def _row_counts(splits: Any) -> list[int]:
    if not isinstance(splits, mx.nd.NDArray):
        return row_counts(splits)
    if np.dtype(splits.dtype) != np.int32:  # as in Horovod; NDArrays are float32 by default
        raise ValueError(SPLITS_ARE_INT32.format(dtype=np.dtype(splits.dtype).name))
    return row_counts(splits.asnumpy())


# NDArrays as operands and results of the core. Arrays on a GPU are copied to the host and back.


def _check_tensors(tensors: Sequence[Any], op: int | None = None) -> None:
    """Refuse tensors that cannot be sent, or cannot be reduced by ``op``.

    Raises
    ------
    TypeError
        A tensor is not an NDArray.
    ValueError
        A tensor is sparse, or the core has no such reduction for its type.
    """
    for tensor in tensors:
        if not isinstance(tensor, mx.nd.NDArray):
            raise TypeError(f"hvd_kernel.mxnet takes NDArrays, not {type(tensor).__name__}: use mx.nd.array(...)")
        if tensor.stype != "default":
            raise ValueError(f"Tensors of storage type {tensor.stype} are not supported: use tostype('default').")
        number = DTYPES.get(_dtype_name(tensor))
        if number is None:
            raise ValueError(not_moved(_dtype_name(tensor), "use astype(...)"))
        if op is not None:
            check_reducible(number, op)


def _empty_like(tensor: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return memory on the host for a result of the tensor's kind."""
    with mx.util.np_shape(True):  # 0 rows mean none, not an unknown number
        module = mx.np if isinstance(tensor, mx.np.ndarray) else mx.nd
        return module.empty(tensor.shape if shape is None else shape, dtype=tensor.dtype, ctx=mx.cpu())


def _on_host(tensor: Any) -> Any:
    """Return the tensor, or a copy of a tensor on a GPU, which MXNet makes asynchronously."""
    return tensor.as_in_context(mx.cpu()) if tensor.context.device_type == "gpu" else tensor


def _to_devices(results: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """Return results on the devices of the operands."""
    return [result.as_in_context(tensor.context) for result, tensor in zip(results, tensors, strict=True)]


class _Operand(NamedTuple):
    tensor: Any
    host: Any
    place: Place


class _NDArrayMemory:
    """Memory of NDArrays, of which the core returns rows of all ranks."""

    def operand(self, value: Any, op: int | None = None) -> _Operand:
        """Return a tensor's memory on the host, after waiting for its elements."""
        del op  # MXNet's engine reduces
        host = _on_host(value)
        host.wait_to_read()
        pointer = ctypes.c_void_p()
        # MXNet orders elements row by row for this; oneDNN may have ordered them differently.
        mx.base.check_call(mx.base._LIB.MXNDArrayGetData(host.handle, ctypes.byref(pointer)))  # noqa: SLF001 - its C API
        return _Operand(value, host, (pointer.value or 0, tuple(host.shape), DTYPES[_dtype_name(host)]))

    def received(self, operands: Sequence[_Operand], outcome: Any) -> list[Any]:
        """Return memory of the core as arrays of the tensors' kinds and devices; without a copy on the host."""
        pairs = zip(outcome.buffers, operands, strict=True)
        return [_from_core(buffer, operand.tensor) for buffer, operand in pairs]


_MEMORY = _NDArrayMemory()


def _from_core(buffer: Any, tensor: Any) -> Any:
    array = from_buffer(buffer, np.dtype(tensor.dtype))
    with mx.util.np_shape(True):
        if _dtype_name(tensor) in _COPIED:
            result = mx.nd.array(array, dtype=tensor.dtype, ctx=mx.cpu())
        else:
            result = mx.nd.from_numpy(array, zero_copy=True)
        result = result.as_np_ndarray() if isinstance(tensor, mx.np.ndarray) else result
    return result.as_in_context(tensor.context)


def _dtype_name(tensor: Any) -> str:
    return str(np.dtype(tensor.dtype).name)
