"""A JAX primitive for each collective: shapes, lowering to our XLA handler, and what it is outside of a program.

They have no effect in JAX's sense, which ``checkpoint`` and ``custom_vjp`` would refuse: XLA is told that they have
one, and neither drops nor merges them. A result takes its operand's memory, so that XLA gives each gradient its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir
from packaging.version import Version

from hvd_kernel.jax import library
from hvd_kernel.jax.operation import (
    ALLGATHER,
    ALLREDUCE,
    BROADCAST,
    ELEMENTWISE,
    KINDS,
    REDUCESCATTER,
    OperationParams,
)
from hvd_kernel.jax.outside import collectives

_TAKES_ATTRIBUTES_FOR_ITS_OWN = Version(version("jaxlib")) < Version("0.7.2")
"""XLA for the CPU aborts where a program with a matrix product ends in a handler: it reads the handler's attributes as
JSON of its own. With a second result a program ends in what takes the first one out."""

_NOTHING = jax.core.ShapedArray((0,), np.dtype(np.int32))

_CALLBACK = "callback"
_ON_STREAM = (ALLREDUCE, BROADCAST, REDUCESCATTER)  # their results go where XLA wants them


def bind(operation: OperationParams, operands: Sequence[Any]) -> list[Any]:
    """Add an operation to the program that is being traced; where none is, carry it out."""
    return list(PRIMITIVES[operation.kind].bind(*operands, **operation.parameters))


def together(results: Sequence[Any]) -> list[Any]:
    """Return a program's results of several operations once all of them are there: native/jax/together.h says why."""
    return list(TOGETHER.bind(*results))


def shape_of(operation: OperationParams, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a result by its operand's."""
    if operation.kind == ALLGATHER:
        return (shape[0] * operation.size, *shape[1:])
    if operation.kind == REDUCESCATTER:
        return (shape[0] // operation.size, *shape[1:])
    return shape


def _abstract(*operands: Any, **parameters: Any) -> list[Any]:
    operation = OperationParams(**parameters)
    return [jax.core.ShapedArray(shape_of(operation, each.shape), each.dtype) for each in operands]


def _carry_out(*operands: Any, **parameters: Any) -> list[Any]:
    return collectives.run(OperationParams(**parameters), operands)


def _lower(ctx: Any, *operands: Any, **parameters: Any) -> Any:
    operation = OperationParams(**parameters)
    _check_devices(ctx, operation)
    aliases = {place: place for place in range(len(operands))} if operation.kind in ELEMENTWISE else {}
    rule = library.ffi().ffi_lowering(library.TARGET, has_side_effect=True, operand_output_aliases=aliases)
    results = list(ctx.avals_out)
    if len(results) == 1 and _TAKES_ATTRIBUTES_FOR_ITS_OWN:
        ctx = ctx.replace(avals_out=[*results, _NOTHING])
    return rule(ctx, *operands, **operation.attributes)[: len(results)]


def _lower_to_callback(ctx: Any, *operands: Any, **parameters: Any) -> Any:
    """Have XLA call Python, where the handler cannot be used: on a GPU, whose arrays it copies to the host and back."""
    operation = OperationParams(**parameters)
    _check_devices(ctx, operation)
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in ctx.avals_out]

    def host(*arrays: Any) -> list[Any]:
        return collectives.on_host(operation, arrays)

    def call(*arrays: Any) -> Any:
        return io_callback(host, shapes, *arrays, ordered=False)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


def _lower_to_stream(ctx: Any, *operands: Any, **parameters: Any) -> Any:
    """Have XLA call the core on a GPU, with its stream, where the core writes where XLA wants the result."""
    operation = OperationParams(**parameters)
    lower = _lower if operation.kind in _ON_STREAM and operation.only < 0 else _lower_to_callback
    return lower(ctx, *operands, **parameters)


def _check_devices(ctx: Any, operation: OperationParams) -> None:
    """Refuse programs that run on several devices of this process, each of which would call."""
    where = ctx.module_context.axis_context
    if type(where).__name__ != "ShardingContext" or where.num_devices != 1:
        raise NotImplementedError(
            f"hvd.{KINDS[operation.kind]} cannot be used in pmap, shard_map, or with arrays on several devices: a rank "
            "of hvd_kernel.jax is one process with one device. Start a rank for each device, and use jit alone."
        )


def _primitive(kind: int) -> Any:
    made = Primitive(f"hvd_{KINDS[kind]}")
    made.multiple_results = True
    made.def_impl(_carry_out)
    made.def_abstract_eval(_abstract)
    choice = os.environ.get(library.CHOICE)
    if choice != _CALLBACK:
        library.plugin()
        _register(made, _lower, platform="cpu")
    if choice == library.STREAM:
        _register(made, _lower_to_stream, platform="cuda")
    _register(made, _lower_to_callback)
    return made


def _unchanged(*operands: Any) -> list[Any]:
    return list(operands)


def _lower_unchanged(_ctx: Any, *operands: Any) -> list[Any]:
    return list(operands)


def _lower_together(ctx: Any, *operands: Any) -> Any:
    aliases = {place: place for place in range(len(operands))}
    return library.ffi().ffi_lowering(library.TOGETHER, operand_output_aliases=aliases)(ctx, *operands)


def _together() -> Any:
    made = Primitive("hvd_together")
    made.multiple_results = True
    made.def_impl(_unchanged)
    made.def_abstract_eval(_unchanged)
    if os.environ.get(library.CHOICE) != _CALLBACK:
        _register(made, _lower_together, platform="cpu")
    _register(made, _lower_unchanged)
    return made


def _register(primitive: Any, rule: Callable[..., Any], **how: Any) -> None:
    mlir.register_lowering(primitive, rule, **how)


PRIMITIVES = {kind: _primitive(kind) for kind in KINDS}
TOGETHER = _together()
