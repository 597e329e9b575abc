"""JAX primitives of the collectives: shapes, lowering to our XLA handler, and rules to differentiate and vectorise.

They have no effect in JAX's sense, which ``checkpoint`` and ``custom_vjp`` would refuse. In XLA they are marked as
having a side effect, so it neither drops nor merges them. A result reuses its operand's memory, so that XLA gives each
gradient memory of its own.

The gradients are Horovod's.

allreduce      the gradients, reduced in the same way
allgather      the average of the gradients; each rank keeps its own rows
broadcast      the average of the gradients on the root, zero on other ranks
alltoall       the gradient of every row, sent back to the rank of the row
reducescatter  the gradients of all shares, times the number of ranks if the operation is a sum

Each gradient consists of these operations again, so a gradient has a gradient, and each operation is linear: its
tangent is the same operation on the tangents.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from packaging.version import Version

from hvd_kernel.core.tensor import OPS, Adasum, Average, Sum
from hvd_kernel.jax import eager, library
from hvd_kernel.jax.operation import (
    ALLGATHER,
    ALLREDUCE,
    BROADCAST,
    ELEMENTWISE,
    KINDS,
    REDUCESCATTER,
    OperationParams,
    derived_name,
    retraced_name,
)

_MISREADS_ATTRIBUTES = Version(version("jaxlib")) < Version("0.7.2")
"""XLA for the CPU aborts if a program with a matrix product ends in a handler: it parses the handler's attributes as
its own JSON. With a second result the program ends in the operation that selects the first one."""

_EMPTY = jax.core.ShapedArray((0,), np.dtype(np.int32))

_CALLBACK = "callback"
_NOT_MAPPED = None
_ON_STREAM = (ALLREDUCE, BROADCAST, REDUCESCATTER)  # the core writes their results to memory of XLA's


def bind(operation: OperationParams, operands: Sequence[Any]) -> list[Any]:
    """Add an operation to the program that is being traced; run it if no program is traced."""
    return list(PRIMITIVES[operation.kind].bind(*operands, **operation.parameters))


def together(results: Sequence[Any]) -> list[Any]:
    """Return a program's results of several operations when all are complete; native/jax/call.h has the reason."""
    return list(TOGETHER.bind(*results))


def shape_of(operation: OperationParams, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a result for an operand's shape."""
    if operation.kind == ALLGATHER:
        return (shape[0] * operation.size, *shape[1:])
    if operation.kind == REDUCESCATTER:
        return (shape[0] // operation.size, *shape[1:])
    return shape


def _abstract(*operands: Any, **parameters: Any) -> list[Any]:
    operation = OperationParams(**parameters)
    return [jax.core.ShapedArray(shape_of(operation, operand.shape), operand.dtype) for operand in operands]


def _run(*operands: Any, **parameters: Any) -> list[Any]:
    return eager.run(OperationParams(**parameters), operands)


def _lower(ctx: Any, *operands: Any, **parameters: Any) -> Any:
    operation = OperationParams(**parameters)
    _check_devices(ctx, operation)
    aliases = {place: place for place in range(len(operands))} if operation.kind in ELEMENTWISE else {}
    rule = library.ffi().ffi_lowering(library.TARGET, has_side_effect=True, operand_output_aliases=aliases)
    results = list(ctx.avals_out)
    if len(results) == 1 and _MISREADS_ATTRIBUTES:
        ctx = ctx.replace(avals_out=[*results, _EMPTY])
    return rule(ctx, *operands, **operation.attributes)[: len(results)]


def _lower_to_callback(ctx: Any, *operands: Any, **parameters: Any) -> Any:
    """Lower to a call of Python where there is no handler: on a GPU, whose arrays XLA copies to the host and back."""
    operation = OperationParams(**parameters)
    _check_devices(ctx, operation)
    shapes = [jax.ShapeDtypeStruct(result.shape, result.dtype) for result in ctx.avals_out]

    def host(*arrays: Any) -> list[Any]:
        return eager.on_host(operation, arrays)

    def call(*arrays: Any) -> Any:
        return io_callback(host, shapes, *arrays, ordered=False)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


def _lower_to_stream(ctx: Any, *operands: Any, **parameters: Any) -> Any:
    """Lower to a call of the core with XLA's stream on a GPU; the core writes to the result's memory."""
    operation = OperationParams(**parameters)
    lower = _lower if operation.kind in _ON_STREAM and operation.only < 0 else _lower_to_callback
    return lower(ctx, *operands, **parameters)


def _check_devices(ctx: Any, operation: OperationParams) -> None:
    """Refuse programs on several devices of this process, each of which would call the collective."""
    axis_context = ctx.module_context.axis_context
    if type(axis_context).__name__ != "ShardingContext" or axis_context.num_devices != 1:
        raise NotImplementedError(
            f"hvd.{KINDS[operation.kind]} cannot be used in pmap, shard_map, or with arrays on several devices: a rank "
            "of hvd_kernel.jax is one process with one device. Start a rank for each device, and use jit alone."
        )


def _primitive(kind: int) -> Any:
    primitive = Primitive(f"hvd_{KINDS[kind]}")
    primitive.multiple_results = True
    primitive.def_impl(_run)
    primitive.def_abstract_eval(_abstract)
    choice = os.environ.get(library.CHOICE)
    if choice != _CALLBACK:
        library.plugin()
        _register_lowering(primitive, _lower, platform="cpu")
    if choice == library.STREAM:
        _register_lowering(primitive, _lower_to_stream, platform="cuda")
    _register_lowering(primitive, _lower_to_callback)
    return primitive


def _unchanged(*operands: Any) -> list[Any]:
    return list(operands)


def _lower_unchanged(_ctx: Any, *operands: Any) -> list[Any]:
    return list(operands)


def _lower_together(ctx: Any, *operands: Any) -> Any:
    aliases = {place: place for place in range(len(operands))}
    return library.ffi().ffi_lowering(library.TOGETHER, operand_output_aliases=aliases)(ctx, *operands)


def _together() -> Any:
    primitive = Primitive("hvd_together")
    primitive.multiple_results = True
    primitive.def_impl(_unchanged)
    primitive.def_abstract_eval(_unchanged)
    if os.environ.get(library.CHOICE) != _CALLBACK:
        _register_lowering(primitive, _lower_together, platform="cpu")
    _register_lowering(primitive, _lower_unchanged)
    return primitive


def _register_lowering(primitive: Any, rule: Callable[..., Any], **options: Any) -> None:
    mlir.register_lowering(primitive, rule, **options)


PRIMITIVES = {kind: _primitive(kind) for kind in KINDS}
TOGETHER = _together()

# Rules to differentiate and vectorise.


def register_rules() -> None:
    """Register the rules with JAX."""
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
    results = bind(operation.but(name=retraced_name(operation.name)), primals)
    moved = [place for place, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    linear = operation.but(name=derived_name(operation.name, "j"), step=False, samples=0)
    of_moved = iter(bind(linear, [tangents[place] for place in moved]) if moved else ())
    out = [
        ad.Zero(jax.core.ShapedArray(result.shape, tangent.aval.dtype)) if type(tangent) is ad.Zero else next(of_moved)
        for result, tangent in zip(results, tangents, strict=True)
    ]
    return results, out


def _transpose(cotangents: Sequence[Any], *operands: Any, **parameters: Any) -> list[Any]:
    operation = OperationParams(**parameters)
    places = [place for place, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    out: list[Any] = [ad.Zero(operand.aval) if ad.is_undefined_primal(operand) else None for operand in operands]
    if places:
        back = _back(operation).but(name=derived_name(operation.name, "t"), step=False, samples=0)
        scaled = [_scaled(operation, cotangents[place]) for place in places]
        for place, result in zip(places, bind(back, scaled), strict=True):
            out[place] = result
    return out


def _back(operation: OperationParams) -> OperationParams:
    """Return the operation that maps gradients of results to gradients of operands."""
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
        operand if dimension is _NOT_MAPPED else jnp.moveaxis(operand, dimension, 1)  # after the rows
        for operand, dimension in zip(operands, dimensions, strict=True)
    ]
    return bind(operation, moved), [None if dimension is _NOT_MAPPED else 1 for dimension in dimensions]
