"""Reductions of tensors and IndexedSlices over all ranks: Horovod's functions, built on the operations of ``mpi_ops``.

Terms.
  dense   a tensor; reduced by one operation
  slices  tf.IndexedSlices: rows of a large tensor, and their indices. Every rank gets the rows of all ranks; rows of
          the same index add up
"""
# ruff: noqa: PLR0917 - Horovod's signatures

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.tensorflow.compression import Compression, Compressor
from hvd_kernel.tensorflow.library import set_id
from hvd_kernel.tensorflow.mpi_ops import (
    Adasum,
    Average,
    Sum,
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    allgather,
    handle_average_backwards_compatibility,
    size_op,
)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Return the average (or ``op=Sum``, Min, Max, Product, Adasum) over all ranks. Differentiable.

    Parameters
    ----------
    tensor
        A tensor, a variable, or tf.IndexedSlices; shape and type of a dense tensor must be the same on all ranks.
    device_dense, device_sparse
        Device of the operation; "": TensorFlow's choice.
    prescale_factor, postscale_factor
        Factors of each rank's values, and of the result.

    Raises
    ------
    NotImplementedError
        IndexedSlices with an operation other than Average and Sum, or with a factor.
    tf.errors.FailedPreconditionError
        On every rank: the tensors of the ranks differ in shape or type.

    Examples
    --------
    ::

        hvd.allreduce(tf.constant([1.0, 2.0]) * hvd.rank())   # 2 ranks: [0.5, 1.0]
    """
    chosen = handle_average_backwards_compatibility(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        _check_slices(chosen, prescale_factor, postscale_factor)
        with _placed(device_sparse):
            return _slices(tensor, chosen, name, process_set, ignore_name_scope)
    with _placed(device_dense):
        small, ctx = compression.compress(tensor)
        reduced = _allreduce(
            small,
            name=name,
            op=chosen,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        return compression.decompress(reduced, ctx)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors, all of them or none, and return the results. Differentiable.

    Types may differ. IndexedSlices are reduced one by one. Parameters and errors are those of ``allreduce``.
    """
    chosen = handle_average_backwards_compatibility(op, average)
    results: list[Any] = list(tensors)
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            _check_slices(chosen, prescale_factor, postscale_factor)
            with _placed(device_sparse):
                results[place] = _slices(tensor, chosen, name and f"{name}.{place}", process_set, ignore_name_scope)
    dense = [place for place, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    pairs = [compression.compress(tensors[place]) for place in dense]
    with _placed(device_dense):
        reduced = dense and _grouped_allreduce(
            [small for small, _ in pairs],
            name=name,
            op=chosen,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        for place, result, (_, ctx) in zip(dense, reduced, pairs, strict=True):
            results[place] = compression.decompress(result, ctx)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce, and return this rank's share of the rows. Differentiable.

    The first ranks get one row more if the rows do not divide equally.
    """
    with _placed(device_dense):
        small, ctx = compression.compress(tensor)
        reduced = _reducescatter(
            small,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        return compression.decompress(reduced, ctx)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several tensors, all of them or none; return this rank's rows of each. Differentiable."""
    if not tensors:
        return []
    with _placed(device_dense):
        pairs = [compression.compress(tensor) for tensor in tensors]
        reduced = _grouped_reducescatter(
            [small for small, _ in pairs],
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
        )
        return [compression.decompress(result, ctx) for result, (_, ctx) in zip(reduced, pairs, strict=True)]


def divided(gradient: Any, by: Any) -> Any:
    """Divide a tensor, or the rows of IndexedSlices, by a scalar tensor of any type."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(divided(gradient.values, by), gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(by, gradient.dtype)


def _slices(slices: Any, op: int, name: str | None, process_set: ProcessSet, ignore_name_scope: bool) -> Any:
    values = allgather(
        slices.values, name=name and f"{name}.values", ignore_name_scope=ignore_name_scope, process_set=process_set
    )
    indices = allgather(
        slices.indices, name=name and f"{name}.indices", ignore_name_scope=ignore_name_scope, process_set=process_set
    )
    gathered = tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)
    return divided(gathered, size_op(set_id(process_set, "Allreduce"))) if op == Average else gathered


def _check_slices(op: int, prescale: float, postscale: float) -> None:
    if op == Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not support tf.IndexedSlices: pass sparse_as_dense=True to optimizer or tape."
        )
    if op not in {Average, Sum}:
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices.")
    if (prescale, postscale) != (1.0, 1.0):
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices.")


def _placed(device: str) -> AbstractContextManager[Any]:
    placed: AbstractContextManager[Any] = tf.device(device) if device else nullcontext()
    return placed
