"""Arrays of a CUDA device: passed to the core without a copy, by DLPack, and results back as arrays of their library.

The host never waits: a library orders its work before the default stream, as DLPack's consumer requests, the core
starts after that, and the consumer of a result names the stream that continues after the operation.

Term.
  lent  memory that is ready when an operation completes; its consumer reads it by DLPack
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hvd_kernel.core import session
from hvd_kernel.core.tensor import Place, check_reducible, device_trouble

CUDA = 2  # DLPack's number
DEFAULT_STREAM = 1  # DLPack's number of it; the core's is 0
_ORDERED = -1  # DLPack: the consumer orders its own work
_IMMUTABLE = {"jax", "jaxlib"}


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
    return len(arrays) > 0 and all(map(is_supported, arrays))


class DeviceOperand(NamedTuple):
    """An array on a device."""

    array: Any
    place: Place
    device: int
    capsule: Any  # holds the memory


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


class DlpackMemory:
    """Memory of a device; results are arrays of the operand's library, ready when the operation completes."""

    copies: ClassVar[bool] = True
    """Whether the library makes contiguous copies of arrays with other strides, which the core refuses."""

    def operand(self, value: Any, op: int | None = None) -> DeviceOperand:
        """Return an array's memory; its library's work on it is ordered before the default stream."""
        operand = operand_of(_contiguous(value) if self.copies else value)
        if op is not None:
            check_reducible(operand.place[2], op)
        return operand

    def empty(self, shape: tuple[int, ...], like: DeviceOperand) -> DeviceOperand:
        """Return memory of a new array, of the operand's shape or with fewer rows."""
        array = like.array if shape == like.place[1] else like.array[: shape[0]]
        return operand_of(library(array).empty_like(array))

    def written(self, outputs: Sequence[DeviceOperand], operands: Sequence[DeviceOperand], outcome: Any) -> list[Any]:
        """Return the outputs' arrays after making the stream of their library continue after the operation."""
        del operands
        for output in outputs:
            capsule = functools.partial(output.array.__dlpack__, stream=_ORDERED)
            library(output.array).from_dlpack(Lent(output.device, outcome.event, capsule))
        return [output.array for output in outputs]

    def received(self, operands: Sequence[DeviceOperand], outcome: Any) -> list[Any]:
        """Return memory of the core as arrays of the operands' library."""
        from hvd_kernel import _native  # noqa: PLC0415 - only a rank loads the extension

        return [
            library(operand.array).from_dlpack(
                Lent(buffer.device, outcome.event, functools.partial(_native.dlpack_capsule, buffer))
            )
            for buffer, operand in zip(outcome.buffers, operands, strict=True)
        ]


class InPlaceMemory(DlpackMemory):
    """Memory of arrays that are overwritten, and never copied."""

    copies = False


def operand_of(array: Any) -> DeviceOperand:
    """Return the memory of a contiguous array."""
    from hvd_kernel import _native  # noqa: PLC0415 - only a rank loads the extension

    capsule = array.__dlpack__(stream=DEFAULT_STREAM)
    pointer, shape, number, device = _native.dlpack_place(capsule)
    return DeviceOperand(array, (pointer, shape, number, device, 0), device, capsule)


def library(array: Any) -> Any:
    """Return the module of an array's library, with ``empty_like`` and ``from_dlpack``."""
    space = getattr(array, "__array_namespace__", None)
    return space() if space is not None else sys.modules[_module(array)]


def _contiguous(array: Any) -> Any:
    copy = getattr(library(array), "ascontiguousarray", None) if getattr(array, "shape", ()) else None
    return array if copy is None else copy(array)


def _module(array: Any) -> str:
    return type(array).__module__.partition(".")[0]
