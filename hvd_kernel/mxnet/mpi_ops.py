"""Collectives on NDArrays, under Horovod's file name.

``allreduce``, ``broadcast``, ``reducescatter`` and what is made of them return at once: MXNet carries them out when
their tensors are ready, and whoever reads a result waits for it, as with MXNet's own operations. They may begin in
another order on each rank. ``allgather`` and ``alltoall``, whose results have a shape that only the ranks together
know, return when they have ended.

``priority``: among operations that are ready, MXNet begins those of a higher one first.
"""
# ruff: noqa: PLR0917, ARG001 - Horovod's signatures

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import mxnet as mx
import numpy as np

from hvd_kernel.core import handles, ops, session
from hvd_kernel.core.basics import *  # noqa: F403 - names of Horovod's module too
from hvd_kernel.core.build_info import *  # noqa: F403
from hvd_kernel.core.ops import (
    SPLITS_ARE_INT32,
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    row_counts,
    share_of,
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
from hvd_kernel.core.tensor import SCATTERED, reduction_of
from hvd_kernel.errors import HorovodInternalError, NotInitialized
from hvd_kernel.frameworks.arguments import raised_as
from hvd_kernel.mxnet import library
from hvd_kernel.mxnet import tensors as _tensors
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

library.plugin()  # at the import: what is missing is told there

_ALLREDUCE, _BROADCAST, _REDUCESCATTER = 0, 2, 6  # native/c_api/hvd_core.h
_unnamed = 0, itertools.count()  # of which generation of the engine
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
        An NDArray, of one shape and type on all ranks.
    average
        Horovod's older way to say ``op``: True, Average; False, Sum.
    prescale_factor, postscale_factor
        What each rank's values, and the result, are multiplied by.

    Raises
    ------
    MxnetArgumentError
        At once: what this rank alone does wrong. A ValueError and an MXNetError.
    HorovodInternalError
        At the next wait for the result: ranks do not fit together (``Mismatch``), or one of them is gone.

    Example
    -------
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
    """Return the reductions of several tensors, of several types if need be, reduced together or not at all."""
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
    """Return every rank's rows, one after the other; the number of rows may differ."""
    return _gathered([tensor], _name("allgather", name), process_set)[0]


@raised_as(MxnetArgumentError)
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gather the rows of several tensors, together or not at all."""
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
    _tensors.checked([tensor])
    output = _tensors.like(tensor)
    _push(_BROADCAST, [_tensors.on_host(tensor)], [output], _name("broadcast", name), priority, process_set, root_rank)
    return _tensors.back([output], [tensor])[0]


@raised_as(MxnetArgumentError)
def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite the tensor by the root's, and return it."""
    _tensors.checked([tensor])
    host = _tensors.on_host(tensor)
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
    """Send ``splits[r]`` rows to rank r, or equal shares; return what came.

    With ``splits``, an NDArray of int32 or any sequence of integers, the result is a pair: what came, and how many rows
    (int32) came from each rank.
    """
    _tensors.checked([tensor])
    group = set_id(process_set, "Alltoall")
    rows = None if splits is None else _row_counts(splits)
    host = _tensors.on_host(tensor)

    def finish(outcome: Any, _held: Any = host) -> tuple[Any, list[int]]:
        return _tensors.from_core(outcome.buffers[0], tensor), list(outcome.sizes)

    handle = handles.alltoall_place(_name("alltoall", name), _tensors.place_of(host), rows, finish, group, waits=True)
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
    """Reduce, and return this rank's share of the rows; the first ranks get one more where they do not divide."""
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
    """Reduce several tensors, together or not at all, and return this rank's rows of each."""
    some(tensors, "grouped_reducescatter")
    scales = (prescale_factor, postscale_factor)
    return _scattered(tensors, op, _name("grouped_reducescatter", name), priority, scales, process_set)


@raised_as(MxnetArgumentError)
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every rank of the set has come here and this one's operations before it have ended."""
    mx.nd.waitall()
    ops.barrier(process_set)


def join() -> int:
    """Take part in the other ranks' allreduces with zeros until all ranks have joined.

    Returns
    -------
    int
        The rank that joined last, the same everywhere.
    """
    mx.nd.waitall()  # what was called before it belongs before it
    return ops.join()


def shutdown() -> None:  # type: ignore[no-redef] # instead of the core's
    """Leave the other ranks when this rank's operations have ended, well or not."""
    if session.is_initialized():
        try:
            mx.nd.waitall()
        except mx.MXNetError as error:  # whoever waits for that operation's result has heard it
            warnings.warn(f"shutdown: an operation had failed: {error}", stacklevel=2)
    session.shutdown()


def _reduced(
    tensors: Sequence[Any],
    op: int,
    kind: str,
    name: str | None,
    priority: int,
    scales: handles.Scales,
    process_set: ProcessSet,
) -> list[Any]:
    _tensors.checked(tensors, op)
    if not tensors:
        return []
    outputs = [_tensors.like(tensor) for tensor in tensors]
    hosts = [_tensors.on_host(tensor) for tensor in tensors]
    _push(_ALLREDUCE, hosts, outputs, _name(kind, name), priority, process_set, op=op, scales=scales)
    return _tensors.back(outputs, tensors)


def _reduce(
    tensors: Sequence[Any],
    op: int,
    kind: str,
    name: str | None,
    priority: int,
    scales: handles.Scales,
    process_set: ProcessSet,
) -> None:
    _tensors.checked(tensors, op)
    if not tensors:
        return
    hosts = [_tensors.on_host(tensor) for tensor in tensors]
    _push(_ALLREDUCE, hosts, hosts, _name(kind, name), priority, process_set, op=op, scales=scales)
    _copy_back(hosts, tensors)


def _gathered(tensors: Sequence[Any], name: str, process_set: ProcessSet) -> list[Any]:
    _tensors.checked(tensors)
    group = set_id(process_set, "Allgather")
    hosts = [_tensors.on_host(tensor) for tensor in tensors]

    def finish(outcome: Any, _held: Any = hosts) -> list[Any]:
        return [_tensors.from_core(one, tensor) for one, tensor in zip(outcome.buffers, tensors, strict=True)]

    places = [_tensors.place_of(host) for host in hosts]
    result: list[Any] = ops.synchronize(handles.allgather_places(name, places, finish, group, waits=True))
    return result


def _scattered(
    tensors: Sequence[Any], op: int, name: str, priority: int, scales: handles.Scales, process_set: ProcessSet
) -> list[Any]:
    if op not in SCATTERED:
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    _tensors.checked(tensors, op)
    outputs = [_tensors.like(tensor, share_of(tensor.shape, process_set)) for tensor in tensors]
    hosts = [_tensors.on_host(tensor) for tensor in tensors]
    _push(_REDUCESCATTER, hosts, outputs, name, priority, process_set, op=op, scales=scales)
    return _tensors.back(outputs, tensors)


def _push(
    kind: int,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    name: str,
    priority: int,
    process_set: ProcessSet,
    root_rank: int = 0,
    op: int = Sum,
    scales: handles.Scales = (1.0, 1.0),
) -> None:
    group = set_id(process_set, _DOING[kind])
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


_DOING = {_ALLREDUCE: "Allreduce", _BROADCAST: "Broadcast", _REDUCESCATTER: "Reducescatter"}


def _copy_back(hosts: Sequence[Any], tensors: Sequence[Any]) -> None:
    for host, tensor in zip(hosts, tensors, strict=True):
        if host is not tensor:
            host.copyto(tensor)


def _name(kind: str, name: str | None) -> str:
    """Return the operation's name; without one, it is the number of this call: MXNet hands over in another order."""
    global _unnamed  # noqa: PLW0603 - of the process, as the engine
    if name:
        return f"{kind}.{name}"
    if _unnamed[0] != session.generation():
        _unnamed = session.generation(), itertools.count()
    return f"{kind}.noname.{next(_unnamed[1])}"


def _row_counts(splits: Any) -> list[int]:
    if not isinstance(splits, mx.nd.NDArray):
        return row_counts(splits)
    if np.dtype(splits.dtype) != np.int32:  # as in Horovod; an NDArray is of float32 unless its type is named
        raise ValueError(SPLITS_ARE_INT32.format(dtype=np.dtype(splits.dtype).name))
    return row_counts(splits.asnumpy())
