"""NDArrays on their way to the core and back: what it takes, memory for results, and GPUs' by way of the host."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from hvd_kernel.core.tensor import DTYPES, Place, check_reducible, from_buffer, not_moved

_COPIED = {"int8"}  # MXNet takes no memory of this type over


def checked(tensors: Sequence[Any], op: int | None = None) -> None:
    """Refuse what cannot be sent, or not be reduced by ``op``.

    Raises
    ------
    TypeError
        It is not an NDArray.
    ValueError
        It is a sparse one, or its type is none that the core has this reduction for.
    """
    for tensor in tensors:
        if not isinstance(tensor, mx.nd.NDArray):
            raise TypeError(f"hvd_kernel.mxnet takes NDArrays, not {type(tensor).__name__}: use mx.nd.array(...)")
        if tensor.stype != "default":
            raise ValueError(f"Tensors of storage type {tensor.stype} are not supported: use tostype('default').")
        number = DTYPES.get(_name(tensor))
        if number is None:
            raise ValueError(not_moved(_name(tensor), "use astype(...)"))
        if op is not None:
            check_reducible(number, op)


def like(tensor: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return memory for a result of the tensor's kind, on the host."""
    with mx.util.np_shape(True):  # 0 rows are none, not an unknown number
        module = mx.np if isinstance(tensor, mx.np.ndarray) else mx.nd
        return module.empty(tensor.shape if shape is None else shape, dtype=tensor.dtype, ctx=mx.cpu())


def on_host(tensor: Any) -> Any:
    """Return the tensor, or a copy where it is on a GPU. MXNet makes it in its own time."""
    return tensor.as_in_context(mx.cpu()) if tensor.context.device_type == "gpu" else tensor


def back(results: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
    """Return results where the tensors are."""
    return [one.as_in_context(tensor.context) for one, tensor in zip(results, tensors, strict=True)]


def place_of(tensor: Any) -> Place:
    """Return where a tensor of the host lies, when its elements are there."""
    tensor.wait_to_read()
    pointer = ctypes.c_void_p()
    # MXNet puts elements row by row for this, which oneDNN may have put otherwise.
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(pointer)))  # noqa: SLF001 - its C API
    return pointer.value or 0, tuple(tensor.shape), DTYPES[_name(tensor)]


def from_core(buffer: Any, tensor: Any) -> Any:
    """Return memory of the core as an array of the tensor's kind, where the tensor is; without a copy on the host."""
    array = from_buffer(buffer, np.dtype(tensor.dtype))
    with mx.util.np_shape(True):
        if _name(tensor) in _COPIED:
            made = mx.nd.array(array, dtype=tensor.dtype, ctx=mx.cpu())
        else:
            made = mx.nd.from_numpy(array, zero_copy=True)
        made = made.as_np_ndarray() if isinstance(tensor, mx.np.ndarray) else made
    return made.as_in_context(tensor.context)


def _name(tensor: Any) -> str:
    return str(np.dtype(tensor.dtype).name)
