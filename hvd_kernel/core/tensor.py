"""Tensors in the core's terms, and the conversion of NumPy arrays.

Terms.
  dtype  the core's number of an element type (native/tensor/dtype.h); names are Horovod's
  place  (pointer, shape, dtype): contiguous CPU memory; with (..., device, stream): contiguous memory of that device
  op     reduction of elements of several ranks to one; the numbers are Horovod's
"""

from __future__ import annotations

import functools
import logging
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from hvd_kernel.core import session
from hvd_kernel.errors import NotInitialized

DTYPES = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bool": 9,
    "bfloat16": 10,
    "complex64": 11,
    "complex128": 12,
    # The types below are moved but never reduced: broadcast, allgather and alltoall need no arithmetic.
    "float8_e4m3fn": 13,
    "float8_e5m2": 14,
    "uint32": 15,
    "uint64": 16,
    "complex32": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2fnuz": 19,
    "float8_e8m0fnu": 20,
    "float8_e3m4": 21,
    "float8_e4m3": 22,
    "float8_e4m3b11fnuz": 23,
}
NAMES = {number: name for name, number in DTYPES.items()}

Average, Sum, Adasum, Min, Max, Product = range(6)
OPS = {Average: "Average", Sum: "Sum", Adasum: "Adasum", Min: "Min", Max: "Max", Product: "Product"}
_SUMMED = [name for name, number in DTYPES.items() if number < DTYPES["float8_e4m3fn"]]
_ORDERED = [name for name in _SUMMED if not name.startswith("complex")]
REDUCIBLE = {  # op -> the dtypes it is defined for
    op: frozenset(DTYPES[name] for name in names)
    for op, names in {
        Average: [name for name in _SUMMED if name != "bool"],
        Sum: _SUMMED,
        Adasum: ["float16", "bfloat16", "float32", "float64"],
        Min: _ORDERED,
        Max: _ORDERED,
        Product: _SUMMED,
    }.items()
}
SCATTERED = frozenset((Average, Sum))  # the reductions of reducescatter

Place = tuple[int, tuple[int, ...], int] | tuple[int, tuple[int, ...], int, int, int]
Array = npt.NDArray[Any]

_LOG = logging.getLogger("hvd_kernel")
_troubles: tuple[int, dict[int, str]] = (0, {})  # the engine's generation, and per device why it is not used
_logged: set[str] = set()


def dtype_of(array: Array) -> int:
    """Return the core's number for an array's elements.

    Raises
    ------
    ValueError
        The core does not support this type; the message lists the supported ones.
    """
    return number_of(array.dtype)


@functools.cache
def number_of(dtype: np.dtype[Any]) -> int:
    """Return the core's number for a type; raises as ``dtype_of``. Cached: NumPy takes microseconds to name a type."""
    number = DTYPES.get(dtype.name)
    if number is None or not dtype.isnative:
        raise ValueError(not_moved(str(dtype), _remedy(dtype)))
    return number


def not_moved(dtype: str, remedy: str) -> str:
    """Return the message for a type that the core does not support."""
    return f"Tensor type {dtype} is not supported: {remedy}. Supported are: {', '.join(DTYPES)}."


_REMEDIES = {  # by NumPy's kind of type
    "M": "send array.view('int64') and view the result as {0}",
    "m": "send array.view('int64') and view the result as {0}",
    "S": "use broadcast_object or allgather_object",
    "U": "use broadcast_object or allgather_object",
    "O": "use broadcast_object or allgather_object",
    "T": "use broadcast_object or allgather_object",
    "f": "cast it to float64",
    "c": "cast it to complex128",
}


def _remedy(dtype: np.dtype[Any]) -> str:
    if dtype.fields is not None:
        return "send its fields one by one, as in array['name'].copy()"
    if not dtype.isnative:
        return "use array.astype(array.dtype.newbyteorder('='))"
    return _REMEDIES.get(dtype.kind, "cast it to one of them").format(dtype)


def check_op(op: int) -> None:
    """Raise ValueError for a number that is not a reduction."""
    if op not in OPS:
        raise ValueError(f"op={op} does not exist: use {', '.join(OPS.values())}.")


def reduction_of(op: int | None, average: bool | None, *, warns: bool = True) -> int:
    """Return the reduction that Horovod's old ``average=`` or new ``op=`` requests, by default Average.

    Parameters
    ----------
    warns
        Warn that ``average`` is deprecated, at the line of the caller's caller.

    Raises
    ------
    ValueError
        Both are given.

    Example: ``reduction_of(None, False)`` is ``Sum``.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if warns:
        message = "Parameter `average` has been replaced with `op` and will be removed in v1.0"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
    return Average if average else Sum


def check_reducible(dtype: int, op: int) -> None:
    """Raise ValueError if the core has no such reduction for a type.

    Raises
    ------
    ValueError
        The message names the type, the reduction and the remedy.
    """
    check_op(op)
    if dtype not in REDUCIBLE[op]:
        raise ValueError(not_reduced(NAMES[dtype], op))


def not_reduced(dtype: str, op: int) -> str:
    """Return the message for a type without this reduction."""
    accepted = ", ".join(NAMES[number] for number in sorted(REDUCIBLE[op]))
    remedy = cast_for(dtype, op)
    return f"Tensor type {dtype} is not supported by {OPS[op]}: {remedy}. Supported are: {accepted}."


_CASTS = {"uint32": "int64", "uint64": "int64", "complex32": "complex64"}


def cast_for(dtype: str, op: int) -> str:
    """Return the remedy for a missing reduction; native/tensor/dtype.cc has the same for the C table's frontends."""
    if dtype == "bool" and op == Average:
        return "cast it to float32 for the share of true, or use Sum (or) and Product (and)"
    if dtype in {"complex64", "complex128"}:
        return "reduce its real and imaginary parts"
    return f"cast it to {'float32' if op == Adasum else _CASTS.get(dtype, 'float32')}"


def place_of(array: Array) -> Place:
    """Return the place of a contiguous array."""
    return array.ctypes.data, array.shape, dtype_of(array)


def from_buffer(buffer: Any, dtype: np.dtype[Any]) -> Array:
    """Return memory of the core as an array, without copying; the array keeps the memory alive."""
    flat = np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
    return flat.view(dtype).reshape(buffer.shape)


def device_trouble(device: int) -> str:
    """Return why the core does not work on memory of a GPU, "" if it does; each engine is queried once.

    The reason is logged once, unless the user has chosen it (HVD_GPU=staged).
    """
    global _troubles  # noqa: PLW0603 - of the process, as the engine
    if _troubles[0] != session.generation():
        _troubles = (session.generation(), {})
    trouble = _troubles[1].get(device)
    if trouble is None:
        trouble = _troubles[1][device] = _device_trouble(device)
    return trouble


def _device_trouble(device: int) -> str:
    if session.setting("HVD_GPU") == "staged":
        return "HVD_GPU=staged"
    try:
        reason = session.engine().device_trouble(device)
    except NotInitialized:
        return "the engine has ended"
    if reason and reason not in _logged:
        _logged.add(reason)
        _LOG.warning("hvd_kernel: tensors of a GPU are copied through host memory, which is slower: %s", reason)
    return reason
