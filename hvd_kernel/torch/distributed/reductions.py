"""Reductions of ``torch.distributed`` in the core's terms.

The core has AVG, SUM, MIN, MAX and PRODUCT. Types that it only moves are converted for the reduction. Bitwise
reductions gather all elements, and each rank combines them in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor
from torch.distributed import ReduceOp

from hvd_kernel.core.tensor import Average, Max, Min, Product, Sum
from hvd_kernel.torch.memory import REDUCED, number_of

Combine = Callable[[Tensor, Tensor], Tensor]

NO_SUCH_OP = "{op} is not supported by the hvd backend. Supported are: {accepted}."
NOT_BITWISE = "{op} combines the bits of integers or bool, not of {dtype}: send tensor.view(torch.uint8) or an integer."

_OPS = {"SUM": Sum, "AVG": Average, "PRODUCT": Product, "MIN": Min, "MAX": Max}
CORE_OPS = {int(getattr(ReduceOp.RedOpType, name)): op for name, op in _OPS.items()}
"""Reductions that the core carries out, by torch's number."""
_BITWISE: dict[str, Combine] = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
_SCALED = "PREMUL_SUM"
_KINDS = ReduceOp.RedOpType
_NAMES = {int(getattr(_KINDS, name)): name for name in (*_OPS, *_BITWISE, _SCALED)}
_WIDER = {  # types without arithmetic in the core -> types of their reduction
    kind: getattr(torch, wider)
    for name, wider in {
        "float8_e4m3fn": "float32",
        "float8_e5m2": "float32",
        "float8_e4m3fnuz": "float32",
        "float8_e5m2fnuz": "float32",
        "complex32": "complex64",
        "uint32": "int64",
    }.items()
    if (kind := getattr(torch, name, None)) is not None
}


class ReduceRule(Struct, frozen=True, gc=False):
    """Steps by which elements of a type are reduced."""

    op: int
    """The core's reduction; Sum for a bitwise one, which the core does not carry out."""
    wider: torch.dtype | None = None
    """Elements are converted to this type before, and back afterwards; None: they are not."""
    factor: Any = None
    """Number or tensor by which each rank multiplies its elements before."""
    combine: Combine | None = None
    """Combines the elements of two ranks, for a bitwise reduction."""

    def loaded(self, buffer: Tensor) -> Tensor:
        """Return the operand for the core; the buffer itself if it needs no conversion."""
        operand = buffer if self.wider is None else buffer.to(self.wider)
        if self.factor is None:
            return operand
        factor = self.factor
        return operand * (factor.to(operand.dtype).cpu() if isinstance(factor, Tensor) else factor)

    def folded(self, rows: Tensor) -> Tensor:
        """Return the combination of all ranks' elements, one row per rank."""
        assert self.combine is not None
        total = rows[0].clone()
        for row in rows[1:]:
            total = self.combine(total, row)
        return total


def reduction_of(op: Any, tensor: Tensor) -> ReduceRule:
    """Return how a tensor's elements are reduced by torch's ``ReduceOp``.

    Raises
    ------
    ValueError
        There is no such reduction, or not for this type; the message has the remedy.
    """
    name = op_name(op)
    if name in _BITWISE:
        if tensor.is_floating_point() or tensor.is_complex():
            raise ValueError(NOT_BITWISE.format(op=name, dtype=tensor.dtype))
        return ReduceRule(Sum, combine=_BITWISE[name])
    core_op = Sum if name == _SCALED else _OPS[name]
    factor = _factor(op) if name == _SCALED else None
    wider = _WIDER.get(tensor.dtype)
    if wider is None or wider not in REDUCED[core_op]:
        number_of(tensor, REDUCED[core_op])
        wider = None
    return ReduceRule(core_op, wider, factor)


def _factor(op: Any) -> Any:
    """Return the number or tensor of PREMUL_SUM; before torch 2.13 it has no attribute."""
    return op.factor if hasattr(op, "factor") else op.__getstate__()[1]


def op_name(op: Any) -> str:
    """Return the name of torch's ``ReduceOp``, as in "SUM".

    Raises
    ------
    ValueError
        The backend has no such reduction.
    """
    number = int(op.op if hasattr(op, "op") else op)
    if number not in _NAMES:
        raise ValueError(NO_SUCH_OP.format(op=op, accepted=", ".join(_NAMES.values())))
    return _NAMES[number]
