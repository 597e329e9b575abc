"""Bytes of MXNet's arrays by what they are for. What several have, as a slice and its whole, counts once."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import Parameter


def alive() -> Mapping[str, int]:
    """Return the size of all arrays that Python knows, of gradients, of what trains and of what optimizers keep."""
    with suppress(mx.MXNetError):  # that of an operation is told to who asks for its result
        mx.nd.waitall()  # an array has its memory when the operation that writes it runs
    objects = gc.get_objects()
    arrays = [each for each in objects if issubclass(type(each), mx.nd.NDArray)]
    gradients = list(gradients_of(arrays))
    updaters = [each for each in objects if issubclass(type(each), mx.optimizer.Updater)]
    states = list(_arrays(state for updater in updaters for state in updater.states.values()))
    parameters = [each for each in objects if issubclass(type(each), Parameter) and each.grad_req != "null"]
    trained = [array for each in parameters for array in each._data or ()]  # noqa: SLF001 - data() raises before there is one
    parts = {"gradients": gradients, "optimizer state": states, "parameters": trained}
    return {"tensors": together([*arrays, *gradients])} | {name: together(each) for name, each in parts.items()}


def gradients_of(arrays: Iterable[Any]) -> Iterator[Any]:
    """Yield the gradients of those arrays that have one."""
    for array in arrays:
        gradient = array.grad if array.stype == "default" else None
        if gradient is not None:
            yield gradient


def together(arrays: Iterable[Any]) -> int:
    """Return how many bytes arrays have in memory; of a sparse one, those of its elements."""
    size, end = 0, 0
    for begin, until in sorted(map(_span, arrays)):
        size += max(0, until - max(begin, end))
        end = max(end, until)
    return size


def _span(array: Any) -> tuple[int, int]:
    """Return where an array begins and ends in memory."""
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))  # noqa: SLF001 - its C API
    begin = pointer.value or 0
    elements = array.data.size if array.stype != "default" else array.size
    return begin, begin + int(elements) * int(np.dtype(array.dtype).itemsize) if begin else begin


def _arrays(states: Iterable[Any]) -> Iterator[Any]:
    """Yield the arrays of what an optimizer remembers: an array, a tuple of them, or nothing."""
    for state in states:
        if isinstance(state, mx.nd.NDArray):
            yield state
        elif isinstance(state, list | tuple):
            yield from _arrays(state)
