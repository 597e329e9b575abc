"""Arrays of a CUDA device: passed to the core without a copy, by DLPack, and results back as arrays of their library.

The host never waits: a library orders its work before the default stream, as DLPack's consumer requests, the core
starts after that, and the consumer of a result names the stream that continues after the operation.

Terms.
  lent   memory that is ready when an operation completes; its consumer reads it by DLPack
  place  see tensor; with the device and the stream, here always the default one
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hvd_kernel.core import handles, session
from hvd_kernel.core.handles import Scales
from hvd_kernel.core.ops import share_of, wire_name
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import SCATTERED, Array, Average, Place, check_reducible, device_trouble

CUDA = 2  # DLPack's number
DEFAULT_STREAM = 1  # DLPack's number of it; the core's is 0
_ORDERED = -1  # DLPack: the consumer orders its own work
_IMMUTABLE = {"jax", "jaxlib"}


class DeviceOperand(NamedTuple):
    """An array's memory."""

    pointer: int
    shape: tuple[int, ...]
    dtype: int
    device: int
    kept: Any  # the capsule, which holds the memory


class Lent:
    """Memory of an array, or of the core, that is ready when an operation completes."""

    def __init__(self, device: int, event: Any, capsule: Callable[[], Any]) -> None:
        self._device, self._event, self._capsule = device, event, capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self._device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """Return the capsule; the stream continues after the operation."""
        if stream != _ORDERED:
            self._event.stream_wait(0 if stream in {None, DEFAULT_STREAM} else stream)
        return self._capsule()


def is_supported(array: Any) -> bool:
    """Return whether the core works on the array's device memory; not if its library treats arrays as constant."""
    if type(array) is np.ndarray:  # on the host: the most frequent case
        return False
    device_of = getattr(array, "__dlpack_device__", None)
    if device_of is None or _module(array) in _IMMUTABLE or not session.is_initialized():
        return False
    kind, number = device_of()
    return int(kind) == CUDA and not device_trouble(int(number))


def are_supported(arrays: Sequence[Any]) -> bool:
    """Return whether the core works on the device memory of all arrays; False for an empty group."""
    return len(arrays) > 0 and all(is_supported(array) for array in arrays)


def allreduce(  # noqa: PLR0917 - as the host's
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Do as the function of this name in core/ops, on arrays of a device."""
    scales = prescale_factor, postscale_factor
    return reduced([array], wire_name("allreduce", name), op, scales, process_set)[0]


def grouped_allreduce(  # noqa: PLR0917 - as the host's
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Do as the function of this name in core/ops, on arrays of a device."""
    scales = prescale_factor, postscale_factor
    return reduced(arrays, wire_name("grouped_allreduce", name), op, scales, process_set)


def reduced(
    arrays: Sequence[Any], name: str, op: int, scales: Scales, process_set: ProcessSet, *, over: bool = False
) -> list[Any]:
    """Return the reduced arrays; with ``over`` they overwrite the operands."""
    group = set_id(process_set, "Allreduce")
    arrays = arrays if over else _contiguous(arrays)
    inputs = [operand(array) for array in arrays]
    for source in inputs:
        check_reducible(source.dtype, op)
    results = arrays if over else [library(array).empty_like(array) for array in arrays]
    outputs = inputs if over else [operand(result) for result in results]
    finish = _completing(results, inputs, outputs)
    handle = handles.allreduce_places(name, _in_out(inputs, outputs), op, scales, finish, group, waits=True)
    done: list[Any] = handles.synchronize(handle)
    return done


def broadcast(array: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Do as the function of this name in core/ops, on arrays of a device."""
    (array,) = _contiguous([array])
    return sent(array, library(array).empty_like(array), root_rank, wire_name("broadcast", name), process_set)


def sent(array: Any, result: Any, root_rank: int, name: str, process_set: ProcessSet) -> Any:
    """Broadcast the root's array into ``result``, and return it."""
    group = set_id(process_set, "Broadcast")
    inputs, outputs = [operand(array)], [operand(result)]
    finish = _completing([result], inputs, outputs)
    handle = handles.broadcast_places(name, _in_out(inputs, outputs), root_rank, finish, group, waits=True)
    return handles.synchronize(handle)[0]


def allgather(array: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Do as the function of this name in core/ops, on arrays of a device."""
    return _gathered([array], wire_name("allgather", name), process_set)[0]


def grouped_allgather(
    arrays: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Do as the function of this name in core/ops, on arrays of a device."""
    return _gathered(arrays, wire_name("grouped_allgather", name), process_set)


def _gathered(arrays: Sequence[Any], name: str, process_set: ProcessSet) -> list[Any]:
    group = set_id(process_set, "Allgather")
    inputs = [operand(array) for array in _contiguous(arrays)]

    def finish(outcome: Any, _held: Any = inputs) -> list[Any]:
        return [of_core(buffer, outcome.event, like) for buffer, like in zip(outcome.buffers, arrays, strict=True)]

    handle = handles.allgather_places(name, [place(source) for source in inputs], finish, group, waits=True)
    done: list[Any] = handles.synchronize(handle)
    return done


def alltoall(
    array: Any,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, Array]:
    """Do as ``core.ops.alltoall``, on an array of a device; the received row counts are a NumPy array."""
    group = set_id(process_set, "Alltoall")
    (source,) = map(operand, _contiguous([array]))
    rows = None if splits is None else [int(count) for count in splits]

    def finish(outcome: Any, _held: Any = source) -> tuple[Any, Array]:
        return of_core(outcome.buffers[0], outcome.event, array), np.array(outcome.sizes, np.int32)

    handle = handles.alltoall_place(wire_name("alltoall", name), place(source), rows, finish, group, waits=True)
    done: tuple[Any, Array] = handles.synchronize(handle)
    return done


def reducescatter(  # noqa: PLR0917 - as the host's
    array: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Do as the function of this name in core/ops, on arrays of a device."""
    scales = prescale_factor, postscale_factor
    return _scattered([array], wire_name("reducescatter", name), op, scales, process_set)[0]


def grouped_reducescatter(  # noqa: PLR0917 - as the host's
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Do as the function of this name in core/ops, on arrays of a device."""
    scales = prescale_factor, postscale_factor
    return _scattered(arrays, wire_name("grouped_reducescatter", name), op, scales, process_set)


def _scattered(arrays: Sequence[Any], name: str, op: int, scales: Scales, process_set: ProcessSet) -> list[Any]:
    group = set_id(process_set, "Reducescatter")
    arrays = _contiguous(arrays)
    inputs = [operand(array) for array in arrays]
    for source in inputs if op in SCATTERED else ():
        check_reducible(source.dtype, op)
    rows = [share_of(source.shape, process_set)[0] for source in inputs]
    results = [library(array).empty_like(array[:count]) for array, count in zip(arrays, rows, strict=True)]
    outputs = [operand(result) for result in results]
    finish = _completing(results, inputs, outputs)
    handle = handles.reducescatter_places(name, _in_out(inputs, outputs), op, scales, finish, group, waits=True)
    done: list[Any] = handles.synchronize(handle)
    return done


def _contiguous(arrays: Sequence[Any]) -> Sequence[Any]:
    """Return contiguous copies where the library has ``ascontiguousarray``; the core refuses other strides."""
    return [_plain(array) if getattr(array, "shape", ()) else array for array in arrays]


def _plain(array: Any) -> Any:
    copy = getattr(library(array), "ascontiguousarray", None)
    return array if copy is None else copy(array)


def operand(array: Any) -> DeviceOperand:
    """Return an array's memory; its library's work on it is ordered before the default stream."""
    from hvd_kernel import _native  # noqa: PLC0415 - only a rank loads the extension

    capsule = array.__dlpack__(stream=DEFAULT_STREAM)
    return DeviceOperand(*_native.dlpack_place(capsule), capsule)


def place(source: DeviceOperand) -> Place:
    """Return an operand for the core: address, shape, type, device, and the default stream."""
    return source.pointer, source.shape, source.dtype, source.device, 0


def _in_out(inputs: Sequence[DeviceOperand], outputs: Sequence[DeviceOperand]) -> list[handles.InOut]:
    return [
        (source.pointer, target.pointer, source.shape, source.dtype, source.device, 0)
        for source, target in zip(inputs, outputs, strict=True)
    ]


def _completing(
    results: Sequence[Any], inputs: Sequence[DeviceOperand], outputs: Sequence[DeviceOperand]
) -> handles.Finish:
    """Return a finish function that makes the stream of each result's library continue after the operation."""

    def finish(outcome: Any, _held: Any = inputs) -> list[Any]:
        for result, output in zip(results, outputs, strict=True):
            ordered = Lent(output.device, outcome.event, functools.partial(result.__dlpack__, stream=_ORDERED))
            library(result).from_dlpack(ordered)
        return list(results)

    return finish


def of_core(buffer: Any, event: Any, like: Any) -> Any:
    """Return memory of the core as an array of the library of ``like``, ready when the operation completes."""
    from hvd_kernel import _native  # noqa: PLC0415 - only a rank loads the extension

    return library(like).from_dlpack(Lent(buffer.device, event, lambda: _native.dlpack_capsule(buffer)))


def library(array: Any) -> Any:
    """Return the module of an array's library, with ``empty_like`` and ``from_dlpack``."""
    space = getattr(array, "__array_namespace__", None)
    return space() if space is not None else sys.modules[_module(array)]


def _module(array: Any) -> str:
    return type(array).__module__.partition(".")[0]
