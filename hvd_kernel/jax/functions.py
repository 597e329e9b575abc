"""Broadcast of parameters and objects, and gradients that are reduced over all ranks."""
# ruff: noqa: PLR0917 - as Horovod's other frontends

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import numpy as np

from hvd_kernel.core import ops as _host
from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.core.tensor import Average
from hvd_kernel.frameworks.compression import Compressor, NoneCompressor
from hvd_kernel.jax.ops import grouped_broadcast
from hvd_kernel.jax.optimizer import reduce_gradients


def broadcast_parameters(params: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the root's parameters: a tree of arrays, of the same structure, shapes and types on all ranks.

    Raises
    ------
    ValueError
        On every rank: the trees have different forms.

    Example
    -------
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

    Example
    -------
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
