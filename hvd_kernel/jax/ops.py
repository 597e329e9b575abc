"""Collectives on JAX arrays: operations of the program inside ``jit``, direct calls of the core outside.

All ranks compile the same programs and run them in the same order. In a program shapes are fixed: ranks have equal
numbers of rows. A failure inside a program raises one of JAX's errors, see ``translated``; outside, a
``HorovodInternalError``.
"""
# ruff: noqa: PLR0917 - as Horovod's other frontends

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvd_kernel.core import handles
from hvd_kernel.core import ops as _host
from hvd_kernel.core.ops import Adasum, Average, Max, Min, Product, Sum, join
from hvd_kernel.core.process_sets import ProcessSet, global_process_set, set_id
from hvd_kernel.core.tensor import DTYPES, SCATTERED, check_op, check_reducible, not_moved
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.frameworks.compression import CastCompressor, Compressor, NoneCompressor
from hvd_kernel.jax import eager, library
from hvd_kernel.jax.operation import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    KINDS,
    REDUCESCATTER,
    OperationParams,
    is_plain,
    is_traced,
    name_of_call,
)
from hvd_kernel.jax.primitive import bind, register_rules

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_broadcast",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]

register_rules()

_KEYS_ARE_MOVED = "random keys are moved and never reduced, so use broadcast, allgather or alltoall"


class FP16Compressor(CastCompressor):
    """Sends arrays as float16: up to 65504, 11 bits of precision."""

    wire: Any = jnp.float16

    @staticmethod
    def cast(tensor: Any, dtype: Any, /) -> Any:
        """Return the array in another type."""
        return tensor.astype(dtype)

    @staticmethod
    def is_floating(tensor: Any, /) -> bool:
        """Return whether the array's elements are floating point."""
        return bool(jnp.issubdtype(tensor.dtype, jnp.floating))


class BF16Compressor(FP16Compressor):
    """Sends arrays as bfloat16: float32's range, 8 bits of precision."""

    wire: Any = jnp.bfloat16


class Compression:
    """Values of ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def allreduce(
    x: Any,
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = NoneCompressor,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the average (or ``op=Sum``, Min, Max, Product, Adasum) over all ranks. Differentiable: Average and Sum.

    Parameters
    ----------
    x
        An array or a number, of the same shape and type on all ranks.
    name
        Name by which ranks match operations. None: in a program, the call's position in the source; outside, the number
        of the call on each rank.
    prescale_factor, postscale_factor
        Factors of each rank's values, and of the result.

    Raises
    ------
    ValueError
        On this rank alone: the type does not support the reduction.
    HorovodInternalError
        Outside of a program: the calls of the ranks differ (``Mismatch``), or a rank has died.

    Examples
    --------
    ::

        jax.jit(hvd.allreduce)(jnp.array([1.0, 2.0]) * hvd.rank())   # 2 ranks: [0.5, 1.0]
    """
    scales = prescale_factor, postscale_factor
    return _reduced([_array(x)], op, name, compression, scales, process_set, grouped=False)[0]


def grouped_allreduce(
    tree: Any,
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = NoneCompressor,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce the arrays of a tree, all of them or none, and return a tree of the results; types may differ.

    Parameters
    ----------
    tree
        A pytree: a list, a dict, gradients of ``jax.grad``. Other parameters and errors are those of ``allreduce``.
    """
    scales = prescale_factor, postscale_factor
    return _over(tree, lambda leaves: _reduced(leaves, op, name, compression, scales, process_set, grouped=True))


def allgather(x: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the rows of all ranks, concatenated. Outside of a program their number may differ. Differentiable."""
    return _gathered([_array(x)], name, process_set, grouped=False)[0]


def grouped_allgather(tree: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Gather the rows of a tree's arrays, all of them or none. Differentiable."""
    return _over(tree, lambda leaves: _gathered(leaves, name, process_set, grouped=True))


def broadcast(x: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Return the root's array on every rank; ``root_rank`` is a global rank also in a process set. Differentiable."""
    return _broadcast([_array(x)], root_rank, name, process_set, grouped=False)[0]


def grouped_broadcast(
    tree: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Broadcast the arrays of a tree from the root, all of them or none. Differentiable."""
    return _over(tree, lambda leaves: _broadcast(leaves, root_rank, name, process_set, grouped=True))


def alltoall(x: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Send ``splits[r]`` rows to rank r, or equal shares; return the received rows.

    With ``splits``, which are possible outside of programs only, return a pair: the received rows, and the number of
    rows (int32) from each rank. With equal shares it is differentiable.

    Raises
    ------
    ValueError
        The rows cannot be divided equally, or splits are used in a program.
    """
    array = _array(x)
    if splits is not None:
        if _in_program([array, splits]):
            raise ValueError(
                "alltoall with splits has a result of unknown shape: use it outside of jit, or equal shares."
            )
        data = _without_keys(array)
        _dtype(data)
        rows, counts = _host.alltoall(np.asarray(data), np.asarray(splits), name, process_set)
        return _with_keys(jax.device_put(rows), array), jax.device_put(counts)
    number, size = set_id(process_set, "Alltoall"), _size(process_set)
    _check_shares(array, size, "alltoall")
    return _run(OperationParams(ALLTOALL, "", number, size=size), [array], name)[0]


def reducescatter(
    x: Any,
    op: int = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce, and return this rank's share of the rows. Differentiable.

    If the rows cannot be divided equally, the first ranks get one row more; in a program this is an error.
    """
    return _scattered([_array(x)], op, name, (prescale_factor, postscale_factor), process_set, grouped=False)[0]


def grouped_reducescatter(
    tree: Any,
    op: int = Average,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce a tree's arrays, all of them or none, and return this rank's rows of each. Differentiable."""
    scales = prescale_factor, postscale_factor
    return _over(tree, lambda leaves: _scattered(leaves, op, name, scales, process_set, grouped=True))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set has called this function.

    In a program the barrier runs once in every run, in no defined order with operations that do not depend on each
    other; it cannot be differentiated or used under ``checkpoint``.
    """
    number = set_id(process_set, "Barrier")
    if not is_traced():
        handles.barrier(process_set)
        return
    library.plugin()
    attributes = OperationParams(BARRIER, "", number).attributes | {"name": "barrier.noname"}
    result = jax.ShapeDtypeStruct((), np.int32)
    library.ffi().ffi_call(library.TARGET, result, has_side_effect=True)(**attributes)


def broadcast_parameters(params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the root's parameters: a tree of arrays, of the same structure, shapes and types on all ranks.

    Raises
    ------
    ValueError
        On every rank: the trees have different forms.

    Examples
    --------
    ::

        params = hvd.broadcast_parameters(params, root_rank=0)
        opt_state = hvd.broadcast_parameters(opt_state, root_rank=0)
    """
    leaves, form = jax.tree.flatten(params)
    forms = _host.allgather_object(str(form), "broadcast_parameters.form", process_set)
    for place, other in enumerate(forms):
        if other != forms[0]:
            members = process_set.ranks or range(len(forms))
            raise ValueError(
                f"broadcast_parameters: the trees of ranks {members[0]} and {members[place]} have different forms: "
                f"{forms[0][:200]} and {other[:200]}. Build the same model on every rank."
            )
    received = grouped_broadcast(leaves, root_rank, "broadcast_parameters", process_set)
    return jax.tree.unflatten(form, received)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank; ``obj`` of other ranks is ignored."""
    return _host.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return the objects of all ranks, in rank order; their types may differ."""
    return _host.allgather_object(obj, name, process_set)


def reduce_leaves(
    leaves: Sequence[Any],
    op: int,
    name: str | None,
    scales: handles.Scales,
    process_set: ProcessSet,
    *,
    ends_step: bool,
    samples: int = 0,
) -> list[Any]:
    """Reduce some of a step's gradients as a group; with ``ends_step`` the last ones, of a step of ``samples``."""
    step = samples if ends_step else None
    return _reduced(leaves, op, name, NoneCompressor, scales, process_set, grouped=True, ended_step=step)


def _reduced(
    arrays: Sequence[Any],
    op: int,
    name: str | None,
    compression: type[Compressor],
    scales: handles.Scales,
    process_set: ProcessSet,
    *,
    grouped: bool,
    ended_step: int | None = None,
) -> list[Any]:
    pairs = [compression.compress(array) for array in arrays]
    for small, _ in pairs:
        check_reducible(_dtype(small), op)
    number = set_id(process_set, "Allreduce")
    operation = OperationParams(
        ALLREDUCE, "", number, op, prescale=scales[0], postscale=scales[1], grouped=grouped,
        step=ended_step is not None, samples=ended_step or 0,
    )  # fmt: skip
    results = _run(operation, [small for small, _ in pairs], name)
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]


def _gathered(arrays: Sequence[Any], name: str | None, process_set: ProcessSet, *, grouped: bool) -> list[Any]:
    number = set_id(process_set, "Allgather")
    for array in arrays:
        _check_rows(array, "allgather")
    return _run(OperationParams(ALLGATHER, "", number, size=_size(process_set), grouped=grouped), arrays, name)


def _broadcast(
    arrays: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet, *, grouped: bool
) -> list[Any]:
    number = set_id(process_set, "Broadcast")
    ranks = process_set.ranks if number else range(_size(process_set))
    if ranks is None or root_rank not in ranks:
        raise ValueError(f"broadcast received invalid root rank {root_rank} for provided process set")
    return _run(OperationParams(BROADCAST, "", number, root=root_rank, grouped=grouped), arrays, name)


def _scattered(
    arrays: Sequence[Any],
    op: int,
    name: str | None,
    scales: handles.Scales,
    process_set: ProcessSet,
    *,
    grouped: bool,
) -> list[Any]:
    check_op(op)
    if op not in SCATTERED:
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    number, size = set_id(process_set, "Reducescatter"), _size(process_set)
    for array in arrays:
        check_reducible(_dtype(array), op)
        if _in_program([array]):
            _check_shares(array, size, "reducescatter")
        else:
            _check_rows(array, "reducescatter")
    operation = OperationParams(
        REDUCESCATTER, "", number, op, size=size, prescale=scales[0], postscale=scales[1], grouped=grouped
    )
    return _run(operation, arrays, name)


def _run(operation: OperationParams, arrays: Sequence[Any], name: str | None) -> list[Any]:
    sent = [_without_keys(array) for array in arrays]
    for array in sent:
        _dtype(array)
    if is_plain() and not _in_program(sent):
        results = eager.run(operation.but(name=name) if name else operation, sent)
    else:
        results = bind(operation.but(name=name_of_call(name)), sent)
    return [_with_keys(result, array) for result, array in zip(results, arrays, strict=True)]


def _has_keys(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def _without_keys(array: Any) -> Any:
    """Return the data of random keys (``jax.random.key``), and other arrays unchanged."""
    return jax.random.key_data(array) if _has_keys(array) else array


def _with_keys(result: Any, array: Any) -> Any:
    """Return a result as random keys of the operand's kind if the operand has keys."""
    return jax.random.wrap_key_data(result, impl=jax.random.key_impl(array)) if _has_keys(array) else result


def _over(tree: Any, function: Any) -> Any:
    leaves, form = jax.tree.flatten(tree)
    return jax.tree.unflatten(form, function([_array(leaf) for leaf in leaves])) if leaves else tree


def _array(x: Any) -> Any:
    if isinstance(x, jax.Array):
        return x
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError):
        raise TypeError(
            f"hvd_kernel.jax takes arrays and numbers, not {type(x).__name__}: for trees of arrays there are "
            f"{', '.join(f'grouped_{kind}' for kind in KINDS.values() if kind != 'alltoall')}"
        ) from None


def _dtype(array: Any) -> int:
    return _number_of(array.dtype)


@functools.cache
def _number_of(dtype: Any) -> int:
    number = DTYPES.get(str(dtype))
    if number is None:
        is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
        raise ValueError(not_moved(str(dtype), _KEYS_ARE_MOVED if is_key else "use astype(...)"))
    return number


def _in_program(arrays: Sequence[Any]) -> bool:
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def _size(process_set: ProcessSet) -> int:
    size = process_set.size()
    if size is None:
        return handles.current_engine().size  # raises an error if Horovod is not initialized
    return size


def _check_rows(array: Any, doing: str) -> None:
    if not array.shape:
        raise ValueError(f"{doing} needs an array of at least one dimension; use x[None]")


def _check_shares(array: Any, size: int, doing: str) -> None:
    _check_rows(array, doing)
    if array.shape[0] % size:
        raise ValueError(
            f"{doing} of {array.shape[0]} rows among {size} ranks: in a program, and without splits, rows must divide"
        )
