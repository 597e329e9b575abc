"""Array interchange: objects with ``__dlpack__`` or ``__array_interface__`` to NumPy arrays of their memory, and back.

Terms.
  kind  the library of an array: CuPy, PyArrow, torch, JAX. A result has the kind of its operand
  view  a NumPy array of the same memory
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from hvd_kernel.core.tensor import Array

_HOST = {1, 3, 11}  # DLPack's devices with host memory: CPU, and memory pinned by CUDA or ROCm
_MAKERS = ("from_dlpack", "asarray", "array", "to_device")


def view(value: Any) -> Array:
    """Return a value as a NumPy array: a view of an array in host memory, a new array of a list or number.

    Raises
    ------
    ValueError
        The value is on a device, and its library does not copy it to the host; or it has a mask, labels or units, which
        would be lost.
    """
    if type(value) is np.ndarray:
        return value
    refuse_losses(value)
    if hasattr(value, "__array_interface__"):  # NumPy's own subclasses too
        return np.asarray(value)
    if hasattr(value, "__dlpack__") and _is_on_host(value):
        with suppress(BufferError, TypeError, ValueError, RuntimeError):  # types that DLPack lacks, such as bfloat16
            return np.from_dlpack(value)
        return np.asarray(value)
    if hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"):
        return _copied(value)
    return np.asarray(value)


def writable(value: Any, doing: str) -> Array:
    """Return a view through which an array can be overwritten.

    Raises
    ------
    ValueError
        The value cannot be overwritten: a list, an array of JAX or PyArrow, or an array on a device.
    """
    if type(value) is np.ndarray and value.flags.writeable:  # the most frequent case
        return value
    refuse_losses(value)
    array = view(value) if _is_array(value) and _is_on_host(value) else None
    if array is not None and not array.flags.writeable and hasattr(value, "__array__"):
        converted = np.asarray(value)  # older versions of DLPack have no flag for writable memory
        array = converted if converted.ctypes.data == array.ctypes.data else array
    if array is None or not array.flags.writeable:
        kind = f"a {_name(value)}" if array is None else f"this {_name(value)} is read-only and"
        raise ValueError(
            f"{doing} overwrites an array, and {kind} cannot be overwritten from here: use the form that returns a new "
            "one"
        )
    return array


def refuse_losses(value: Any) -> None:
    """Refuse arrays that have more than elements, such as a mask or labels.

    Raises
    ------
    ValueError
        The message names the type, the part that would be lost, and the value to send instead.
    """
    if type(value) in _PLAIN:
        return
    for has_loss, loss in _LOSSES:
        if has_loss(value):
            raise ValueError(f"A {_name(value)} cannot be sent as an array: {loss}.")


def back(result: Array, like: Any) -> Any:
    """Return a result as the operand's kind, of the same memory if that library supports it."""
    if type(like) is np.ndarray or not _is_array(like):
        return result
    if isinstance(like, np.ndarray):
        return result if isinstance(like, np.memmap) else result.view(type(like))
    for make in _makers(like):
        with suppress(BufferError, TypeError, ValueError, RuntimeError):
            return make(result)
    return result


def _is_array(value: Any) -> bool:
    return any(hasattr(value, name) for name in ("__array_interface__", "__dlpack__", "__cuda_array_interface__"))


def _is_on_host(value: Any) -> bool:
    where = getattr(value, "__dlpack_device__", None)
    return not hasattr(value, "__cuda_array_interface__") if where is None else int(where()[0]) in _HOST


def _copied(value: Any) -> Array:
    """Return an array of a device, copied to the host by its library: CuPy's get(), Numba's copy_to_host()."""
    for name in ("get", "copy_to_host"):
        if (copy := getattr(value, name, None)) is not None:
            return np.asarray(copy())
    with suppress(Exception):  # libraries without DLPack's newest version raise various errors
        return np.from_dlpack(value, device="cpu", copy=True)
    raise ValueError(f"a {_name(value)} on a device cannot be read from here: copy it to the host first")


def _makers(like: Any) -> Iterator[Any]:
    space = getattr(like, "__array_namespace__", None)
    root = type(like).__module__.partition(".")[0]
    modules = [space() if space is not None else None, sys.modules.get(root), sys.modules.get(f"{root}.cuda")]
    for module in modules:
        yield from (make for name in _MAKERS if (make := getattr(module, name, None)) is not None)


def _libraries(value: Any) -> set[str]:
    return {kind.__module__.partition(".")[0] for kind in type(value).__mro__}


def _has_labels(value: Any) -> bool:
    return not _libraries(value).isdisjoint(_LABELLED)


def _is_sparse(value: Any) -> bool:
    if "torch" in _libraries(value):
        return str(getattr(value, "layout", "torch.strided")) != "torch.strided"
    return hasattr(value, "todense") or hasattr(value, "toarray")


def _has_nulls(value: Any) -> bool:
    count = getattr(value, "null_count", 0)
    return isinstance(count, int) and count > 0


def _has_state(value: Any) -> bool:
    """Return whether a subclass of NumPy's array passes state, such as units, on to new arrays."""
    finalize: Any = getattr(type(value), "__array_finalize__", None)
    return isinstance(value, np.ndarray) and finalize is not np.ndarray.__array_finalize__


_PLAIN = {np.ndarray, np.memmap, np.matrix, np.recarray, list, tuple, int, float, complex, bool}
_LABELLED = {"pandas", "polars", "xarray"}
_LOSSES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (
        lambda value: isinstance(value, np.ma.MaskedArray),
        "its mask would be lost; send array.filled(...), or both array.data and numpy.ma.getmaskarray(array)",
    ),
    (_has_labels, "its labels would be lost; send what its to_numpy() returns"),
    (_is_sparse, "it is sparse; send a dense copy (toarray(), todense() or to_dense()), or the arrays it is made of"),
    (_has_nulls, "its nulls would be lost; send what its fill_null(...) returns"),
    (_has_state, "what this subclass has besides elements, as units, would be lost; send numpy.asarray(array)"),
)


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
