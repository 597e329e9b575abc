"""A tensor as the core sees it, and NumPy's arrays in those words.

Words.
  dtype  the core's number of an element type (native/tensor/dtype.h); names are Horovod's
  place  (pointer, shape, dtype): contiguous CPU memory
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
}
NAMES = {number: name for name, number in DTYPES.items()}
REDUCIBLE = frozenset(DTYPES[n] for n in ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"))

Place = tuple[int, tuple[int, ...], int]
Array = npt.NDArray[Any]


def dtype_of(array: Array) -> int:
    """Return the core's number for an array's elements.

    Raises
    ------
    ValueError
        The core does not carry this type; the message says which it does.
    """
    number = DTYPES.get(array.dtype.name)
    if number is None or not array.dtype.isnative:
        raise ValueError(f"Tensor type {array.dtype} is not supported. Supported are: {', '.join(DTYPES)}.")
    return number


def check_reducible(dtype: int) -> None:
    """Refuse to sum what has no sum in the core."""
    if dtype not in REDUCIBLE:
        summed = ", ".join(NAMES[number] for number in sorted(REDUCIBLE))
        raise ValueError(f"Tensor type {NAMES[dtype]} is not supported by allreduce. Supported are: {summed}.")


def place_of(array: Array) -> Place:
    """Return where a contiguous array lies."""
    return array.ctypes.data, array.shape, dtype_of(array)


def from_buffer(buffer: Any, dtype: np.dtype[Any]) -> Array:
    """Return memory of the core as an array, without copying; the array keeps the memory alive."""
    flat = np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)
    return flat.view(dtype).reshape(buffer.shape)
