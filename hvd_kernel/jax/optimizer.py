"""Gradients that are averaged over all ranks, in buckets: ``grad``, ``value_and_grad``, and optax's updates.

Term.
  bucket  gradients that are reduced as one operation. Those of the last layers come first, in the order of the backward
          pass: they are reduced while it continues
"""
# ruff: noqa: PLR0917 - as Horovod's other frontends

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hvd_kernel.core import metrics
from hvd_kernel.core.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.core.tensor import Average
from hvd_kernel.errors import ConfigError
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.frameworks.compression import Compressor, NoneCompressor
from hvd_kernel.jax.operation import is_traced
from hvd_kernel.jax.ops import reduce_leaves
from hvd_kernel.jax.primitive import together

BUCKET_BYTES = 4 << 20


def reduce_gradients(
    gradients: Any,
    *,
    op: int = Average,
    compression: type[Compressor] = NoneCompressor,
    groups: int | Sequence[Sequence[int]] | None = None,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
    samples: int = 0,
) -> Any:
    """Reduce a tree of gradients over all ranks, and count a training step.

    Parameters
    ----------
    groups
        The number of operations, or the indices of the leaves in each; None: buckets of 4 MB.
    gradient_predivide_factor
        Divisor of the gradients before the sum; the result is still the average.
    name
        Prefix of the operations' names; None: the names of calls without a name.
    samples
        The number of samples of these gradients on this rank, for the panel's samples/s; 0: unknown.
    """
    leaves, form = jax.tree.flatten(gradients)
    if not leaves:
        return gradients
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ConfigError("gradient_predivide_factor needs op=Average.")
    scales = 1.0 / gradient_predivide_factor, gradient_predivide_factor
    small, contexts = zip(*(compression.compress(leaf) for leaf in leaves), strict=True)
    reduced = list(small)
    buckets = list(_buckets(leaves, groups)) if groups is None or isinstance(groups, int) else groups
    for number, bucket in enumerate(buckets):
        results = reduce_leaves(
            [small[place] for place in bucket],
            op,
            name and f"{name}.group_{number}",
            scales,
            process_set,
            ends_step=number == len(buckets) - 1,
            samples=samples,
        )
        for place, result in zip(bucket, results, strict=True):
            reduced[place] = result
    if not is_traced():
        metrics.step(samples)
    elif len(buckets) > 1:
        reduced = together(reduced)
    whole = [compression.decompress(result, context) for result, context in zip(reduced, contexts, strict=True)]
    return jax.tree.unflatten(form, whole)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    op: int = Average,
    compression: type[Compressor] = NoneCompressor,
    groups: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., Any]:
    """Return ``jax.value_and_grad(fun)`` whose gradients are reduced over all ranks; the value is this rank's.

    The panel's samples/s count the rows of the first array among the arguments that are not differentiated.

    Parameters
    ----------
    argnums, has_aux
        As of ``jax.value_and_grad``.
    op, compression, groups
        As of ``DistributedGradientTransformation``, which is not needed in addition.

    Examples
    --------
    ::

        loss, grads = jax.jit(hvd.value_and_grad(loss_fn))(params, batch)
    """
    function = jax.value_and_grad(fun, argnums, has_aux)
    differentiated = {argnums} if isinstance(argnums, int) else set(argnums)

    @wraps(fun)
    def reduced(*args: Any, **kwargs: Any) -> Any:
        value, gradients = function(*args, **kwargs)
        samples = _rows([arg for place, arg in enumerate(args) if place not in differentiated], kwargs)
        return value, reduce_gradients(
            gradients, op=op, compression=compression, groups=groups, process_set=process_set, samples=samples
        )

    return reduced


def _rows(*trees: Any) -> int:
    """Return the number of rows of the first array in trees; 0 if they contain no array."""
    shapes = (np.shape(leaf) for leaf in jax.tree.leaves(trees))
    return next((shape[0] for shape in shapes if shape), 0)


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    op: int = Average,
    compression: type[Compressor] = NoneCompressor,
    groups: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., Any]:
    """Return ``jax.grad(fun)`` whose gradients are reduced over all ranks. Parameters as of ``value_and_grad``."""
    function = value_and_grad(fun, argnums, has_aux, op, compression, groups, process_set)

    @wraps(fun)
    def gradients(*args: Any, **kwargs: Any) -> Any:
        value, derivatives = function(*args, **kwargs)
        return (derivatives, value[1]) if has_aux else derivatives

    return gradients


def DistributedGradientTransformation(  # noqa: N802 - a class in Horovod's other frontends
    optimizer: Any,
    op: int = Average,
    compression: type[Compressor] = NoneCompressor,
    groups: int | None = None,
    every_k: int = 1,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optax optimizer whose updates use the reduced gradients of all ranks.

    Parameters
    ----------
    optimizer
        An ``optax.GradientTransformation``: ``optax.adam(1e-3)``.
    op
        Average, Sum or Adasum.
    compression
        Compression of the gradients that are sent: ``Compression.fp16``.
    groups
        The number of operations in which gradients are reduced; None: buckets of 4 MB, those of the last layers first.
    every_k
        The number of steps whose gradients are averaged on this rank before they are reduced and applied.
    gradient_predivide_factor
        Divisor of the gradients before the sum; the result is still the average.

    Each update counts as a step. An update does not see the batch: for samples/s on the panel pass the number of this
    rank's samples to ``update``, as in ``samples=len(batch)``; it must be known when the program is traced.

    Raises
    ------
    ImportError
        optax is not installed.

    Examples
    --------
    ::

        tx = hvd.DistributedGradientTransformation(optax.sgd(0.1 * hvd.size()))
        opt_state = tx.init(params)

        @jax.jit
        def step(params, opt_state, batch):
            grads = jax.grad(loss_fn)(params, batch)
            updates, opt_state = tx.update(grads, opt_state, params, samples=len(batch))
            return optax.apply_updates(params, updates), opt_state
    """
    check(process_set)
    optax = _optax()
    inner = optax.with_extra_args_support(optimizer)

    def update(gradients: Any, state: Any, params: Any = None, *, samples: int = 0, **extra: Any) -> Any:
        reduced = reduce_gradients(
            gradients,
            op=op,
            compression=compression,
            groups=groups,
            gradient_predivide_factor=gradient_predivide_factor,
            process_set=process_set,
            samples=samples * every_k,
        )
        return inner.update(reduced, state, params, **extra)

    reducing = optax.GradientTransformationExtraArgs(inner.init, update)
    return reducing if every_k == 1 else _accumulating(reducing, every_k, optax)


class Accumulated(NamedTuple):
    """State of an optimizer that updates every ``every_k`` steps."""

    count: Any
    sums: Any
    inner: Any


def _accumulating(optimizer: Any, every_k: int, optax: Any) -> Any:
    """Sum gradients, and pass their mean to the optimizer every ``every_k`` steps; other updates are zero.

    ``optax.MultiSteps`` would compute the update in each step, and discard it.
    """

    def init(params: Any) -> Accumulated:
        return Accumulated(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), optimizer.init(params))

    def update(gradients: Any, state: Accumulated, params: Any = None, **extra: Any) -> Any:
        sums = jax.tree.map(jnp.add, state.sums, gradients)

        def last() -> Any:
            mean = jax.tree.map(lambda total: total / every_k, sums)
            updates, inner = optimizer.update(mean, state.inner, params, **extra)
            return updates, Accumulated(jnp.zeros_like(state.count), jax.tree.map(jnp.zeros_like, sums), inner)

        def not_yet() -> Any:
            updates = jax.tree.map(jnp.zeros_like, gradients)
            return updates, Accumulated(state.count + 1, sums, state.inner)

        return jax.lax.cond(state.count == every_k - 1, last, not_yet)

    return optax.GradientTransformationExtraArgs(init, update)


def _optax() -> Any:
    try:
        return importlib.import_module("optax")
    except ModuleNotFoundError:
        raise ImportError(
            f"DistributedGradientTransformation needs optax, which is not installed: {install_command('jax')}"
        ) from None


def _buckets(leaves: Sequence[Any], groups: int | None) -> Iterator[list[int]]:
    """Yield the indices of the leaves in each bucket, from the last leaf to the first."""
    backwards = list(range(len(leaves)))[::-1]
    if groups is not None:
        count = max(1, min(groups, len(leaves)))
        yield from (backwards[begin:end] for begin, end in pairwise(len(leaves) * n // count for n in range(count + 1)))
        return
    bucket: list[int] = []
    room = BUCKET_BYTES
    for place in backwards:
        size = leaves[place].size * leaves[place].dtype.itemsize
        if bucket and size > room:
            yield bucket
            bucket, room = [], BUCKET_BYTES
        bucket.append(place)
        room -= size
    yield bucket
