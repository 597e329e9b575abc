"""Collectives on any kind of array: the core's, which accept NumPy arrays, with conversion of operands and results."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvd_kernel.core import call_stack, collectives
from hvd_kernel.core import ops as core
from hvd_kernel.core.collectives import HOST, OutputMemory
from hvd_kernel.core.handles import FastCalls, Scales, synchronize
from hvd_kernel.core.ops import Average, some, wire_name
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import Array
from hvd_kernel.numpy.arrays import back, view, writable
from hvd_kernel.numpy.device_memory import DlpackMemory, InPlaceMemory, are_supported, is_supported

_OUT = """out
    The array to write the result to and to return, of the result's shape and dtype. None: a new array of the operand's
    kind, which is any object with ``__dlpack__`` or ``__array_interface__``; for a list or number a NumPy array.

"""
_DEVICE, _DEVICE_IN_PLACE = DlpackMemory(), InPlaceMemory()
_AFTER_PARAMETERS = re.compile(r"^(?:Returns|Raises)\n-", re.MULTILINE)


def _with_out(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a collective on one array of any kind, with a parameter ``out``."""

    @functools.wraps(verb)
    def collective(array: Any, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None and is_supported(array):
            return verb(array, *args, memory=_DEVICE, **kwargs)
        target = None if out is None else writable(out, f"{verb.__name__}(out=...)")
        result = verb(view(array), *args, **kwargs)
        return back(result, array) if target is None else _written(result, target, out, verb.__name__)

    more = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Any")
    collective.__signature__ = _signature(verb, more)  # type: ignore[attr-defined]
    collective.__doc__ = _with_out_described(verb.__doc__)
    return collective


def _signature(verb: Callable[..., Any], *more: inspect.Parameter) -> inspect.Signature:
    """Return a verb's signature, in which the kind of an array decides on its memory."""
    signature = inspect.signature(verb)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "memory"]
    return signature.replace(parameters=[*kept, *more])


def _with_out_described(doc: str | None) -> str | None:
    """Return a collective's docstring with ``out`` as its last parameter; None if Python removed it (-OO)."""
    if doc is None:
        return None
    text = inspect.cleandoc(doc)  # Python 3.13 has dedented it already
    section = _AFTER_PARAMETERS.search(text)
    end = section.start() if section else len(text)
    return f"{text[:end].rstrip()}\n{_OUT}{text[end:]}"


def _of_several(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def collective(arrays: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        if are_supported(arrays):
            on_device: list[Any] = verb(arrays, *args, memory=_DEVICE, **kwargs)
            return on_device
        results = verb([view(array) for array in arrays], *args, **kwargs)
        return [back(result, array) for result, array in zip(results, arrays, strict=True)]

    collective.__signature__ = _signature(verb)  # type: ignore[attr-defined]
    return collective


def _exchange(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def collective(array: Any, splits: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, Array]:
        if is_supported(array):
            counts = None if splits is None else [int(count) for count in splits]  # also of an array on a device
            received: tuple[Any, Array] = verb(array, counts, *args, memory=_DEVICE, **kwargs)
            return received
        rows, row_counts = verb(view(array), splits, *args, **kwargs)
        return back(rows, array), row_counts

    collective.__signature__ = _signature(verb)  # type: ignore[attr-defined]
    return collective


_fast = FastCalls(np.ndarray, np.ndarray)
call_stack.register_core_caller(__name__)


def _quick(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return allreduce with a fast path: one call of the core for a NumPy array and all ranks."""

    @functools.wraps(verb)
    def allreduce(  # noqa: PLR0917 - as allreduce
        array: Any,
        name: str | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        *,
        out: Any = None,
    ) -> Any:
        if out is None and process_set is global_process_set and type(array) is np.ndarray:
            options = (None, name, op, prescale_factor, postscale_factor, process_set)
            result = _fast.allreduce(array, np.empty_like, *options)
            if result is not None:
                return result
        return verb(array, name, op, prescale_factor, postscale_factor, process_set, out=out)

    return allreduce


def _quick_group(verb: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return grouped_allreduce with a fast path: one call of the core for NumPy arrays."""

    @functools.wraps(verb)
    def grouped_allreduce(  # noqa: PLR0917 - as grouped_allreduce
        arrays: Sequence[Any],
        name: str | None = None,
        op: int = Average,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[Any]:
        options = (name, op, prescale_factor, postscale_factor, process_set)
        results = _fast.grouped(arrays, np.empty_like, None, *options)
        return verb(arrays, *options) if results is None else list(results)

    return grouped_allreduce


allreduce = _quick(_with_out(core.allreduce))
allgather = _with_out(core.allgather)
broadcast = _with_out(core.broadcast)
reducescatter = _with_out(core.reducescatter)
grouped_allreduce = _quick_group(_of_several(core.grouped_allreduce))
grouped_allgather = _of_several(core.grouped_allgather)
grouped_reducescatter = _of_several(core.grouped_reducescatter)
alltoall = _exchange(core.alltoall)


def allreduce_(  # noqa: PLR0917 - as allreduce
    array: Any,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite an array with the reduction over all ranks; return it. Parameters and errors as in ``allreduce``.

    Parameters
    ----------
    array
        A writable array: of NumPy, torch, or with ``__array_interface__``. Contiguous memory is not copied.

    Examples
    --------
    >>> array = np.array([1.0, 2.0])
    >>> hvd.allreduce_(array, op=hvd.Max) is array
    True
    >>> array
    array([1., 2.])
    """
    done = _fast.allreduce(array, array, None, name, op, prescale_factor, postscale_factor, process_set)
    if done is not None:
        return done
    scales = prescale_factor, postscale_factor
    _reduce([array], wire_name("allreduce", name), op, scales, process_set, "allreduce_")
    return array


def grouped_allreduce_(  # noqa: PLR0917 - as grouped_allreduce
    arrays: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite arrays, all of them or none, and return them. Parameters and errors as in ``grouped_allreduce``.

    Examples
    --------
    >>> array = np.ones(2)
    >>> hvd.grouped_allreduce_([array])[0] is array
    True
    """
    done = _fast.grouped(arrays, arrays, None, name, op, prescale_factor, postscale_factor, process_set)
    if done is not None:
        return list(done)
    some(arrays, "grouped_allreduce_")
    scales = prescale_factor, postscale_factor
    _reduce(arrays, wire_name("grouped_allreduce", name), op, scales, process_set, "grouped_allreduce_")
    return list(arrays)


def broadcast_(
    array: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Overwrite an array with the root's, and return it. Parameters and errors as in ``broadcast``.

    Parameters
    ----------
    array
        As in ``allreduce_``.

    Examples
    --------
    >>> array = np.array([hvd.rank(), 7])
    >>> hvd.broadcast_(array, root_rank=0)
    array([0, 7])
    """
    group, wire = set_id(process_set, "Broadcast"), wire_name("broadcast", name)
    memory, targets = _targets([array], "broadcast_")
    handle = collectives.broadcast(memory, targets, wire, root_rank, group=group, in_place=True, waits=True)
    _copy_back(synchronize(handle), targets)
    return array


def _reduce(  # noqa: PLR0917 - the arguments of its callers
    arrays: Sequence[Any], name: str, op: int, scales: Scales, process_set: ProcessSet, doing: str
) -> None:
    group = set_id(process_set, "Allreduce")
    memory, targets = _targets(arrays, doing)
    handle = collectives.allreduce(memory, targets, name, op, scales, group=group, in_place=True, waits=True)
    _copy_back(synchronize(handle), targets)


def _targets(arrays: Sequence[Any], doing: str) -> tuple[OutputMemory, list[Any]]:
    """Return the memory of arrays that are overwritten, and the arrays for it."""
    if are_supported(arrays):
        return _DEVICE_IN_PLACE, list(arrays)
    return HOST, [writable(array, doing) for array in arrays]


def _copy_back(results: list[Any], targets: list[Any]) -> None:
    """Copy results of arrays that are not contiguous, of which the core has had a copy."""
    for result, target in zip(results, targets, strict=True):
        if result is not target:
            target[...] = result


def _written(result: Array, target: Array, out: Any, doing: str) -> Any:
    if (target.shape, target.dtype) != (result.shape, result.dtype):
        raise ValueError(
            f"{doing}: out is {target.dtype} {target.shape}, and the result is {result.dtype} {result.shape}: give one "
            "of the same type and shape"
        )
    target[...] = result
    return out
