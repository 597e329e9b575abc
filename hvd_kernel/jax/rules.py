"""Rules by which JAX differentiates and vectorises the collectives. Gradients are Horovod's.

allreduce      the gradients reduced the same way
allgather      the average of the gradients, of which each rank keeps its own rows
broadcast      the average of the gradients on the root, zero elsewhere
alltoall       every row's gradient sent back to where the row came from
reducescatter  the gradients of all shares, times the number of ranks where the operation is a sum

Each is made of these operations again, so a gradient has a gradient, and each of them is linear: its tangent is the
same operation of the tangents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from hvd_kernel.core.tensor import OPS, Adasum, Average, Sum
from hvd_kernel.jax import names
from hvd_kernel.jax.operation import ALLGATHER, ALLREDUCE, BROADCAST, ELEMENTWISE, KINDS, REDUCESCATTER, OperationParams
from hvd_kernel.jax.primitive import PRIMITIVES, TOGETHER, bind, together

_NOT_MAPPED = None


def register() -> None:
    """Tell JAX."""
    for primitive in PRIMITIVES.values():
        ad.primitive_jvps[primitive] = _jvp
        ad.primitive_transposes[primitive] = _transpose
        batching.primitive_batchers[primitive] = _batch
    ad.primitive_jvps[TOGETHER] = lambda primals, tangents: (together(primals), tangents)
    batching.primitive_batchers[TOGETHER] = lambda operands, dimensions: (together(operands), dimensions)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> Any:
    operation = OperationParams(**parameters)
    if not operation.is_linear:
        raise NotImplementedError(
            f"hvd.{KINDS[operation.kind]}(op={OPS[operation.op]}) has no gradient: use Average or Sum in what is "
            "differentiated, or jax.lax.stop_gradient."
        )
    results = bind(operation.but(name=names.again(operation.name)), primals)
    moved = [place for place, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    linear = operation.but(name=names.made_of(operation.name, "j"), step=False, samples=0)
    of_moved = iter(bind(linear, [tangents[place] for place in moved]) if moved else ())
    out = [
        ad.Zero(jax.core.ShapedArray(result.shape, tangent.aval.dtype)) if type(tangent) is ad.Zero else next(of_moved)
        for result, tangent in zip(results, tangents, strict=True)
    ]
    return results, out


def _transpose(cotangents: Sequence[Any], *operands: Any, **parameters: Any) -> list[Any]:
    operation = OperationParams(**parameters)
    wanted = [place for place, each in enumerate(cotangents) if type(each) is not ad.Zero]
    out: list[Any] = [ad.Zero(each.aval) if ad.is_undefined_primal(each) else None for each in operands]
    if wanted:
        back = _back(operation).but(name=names.made_of(operation.name, "t"), step=False, samples=0)
        given = [_scaled(operation, cotangents[place]) for place in wanted]
        for place, result in zip(wanted, bind(back, given), strict=True):
            out[place] = result
    return out


def _back(operation: OperationParams) -> OperationParams:
    """Return the operation that carries gradients from results to operands."""
    if operation.kind == ALLGATHER:
        return operation.but(kind=REDUCESCATTER, op=Average)
    if operation.only >= 0:
        return operation.but(kind=BROADCAST, root=operation.only, only=-1)
    if operation.kind == BROADCAST:
        return operation.but(kind=ALLREDUCE, op=Average, only=operation.root, size=0)
    if operation.kind == REDUCESCATTER:
        return operation.but(kind=ALLGATHER, prescale=1.0, postscale=1.0)
    return operation


def _scaled(operation: OperationParams, cotangent: Any) -> Any:
    if operation.kind != REDUCESCATTER:
        return cotangent
    scale = operation.prescale * operation.postscale * (operation.size if operation.op == Sum else 1)
    return cotangent if scale == 1 else cotangent * jnp.asarray(scale, cotangent.dtype)


def _batch(operands: Sequence[Any], dimensions: Sequence[Any], **parameters: Any) -> Any:
    operation = OperationParams(**parameters)
    if operation.op == Adasum and operation.kind == ALLREDUCE:
        raise NotImplementedError("hvd.allreduce(op=Adasum) cannot be used in vmap: it weighs whole arrays.")
    if operation.kind in ELEMENTWISE:
        return bind(operation, operands), list(dimensions)
    moved = [
        each if dimension is _NOT_MAPPED else jnp.moveaxis(each, dimension, 1)  # behind the rows
        for each, dimension in zip(operands, dimensions, strict=True)
    ]
    return bind(operation, moved), [None if dimension is _NOT_MAPPED else 1 for dimension in dimensions]
