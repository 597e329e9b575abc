"""The derivative of each collective, as Horovod defines it.

allreduce  the gradients reduced the same way
allgather  the average of the gradients, of which each rank keeps its own rows
broadcast  the average of the gradients on the root, zero elsewhere
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hvd_kernel import _session
from hvd_kernel.ops import synchronize
from hvd_kernel.torch.async_ops import (
    allgather_async,
    allreduce_async,
    allreduce_async_,
    broadcast_async,
    grouped_allreduce_async,
)


def apply(function: Any, *args: Any) -> Any:
    """Run one of these functions, so that autograd takes note."""
    return function.apply(*args)


def _back(name: str | None) -> str | None:
    """Name of the operation on the way back, so that ranks meet there as they met on the way forth."""
    return f"{name}.grad" if name else None


class Allreduce(torch.autograd.Function):
    """Out of place."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, op: int, scales: tuple[float, float]) -> Tensor:
        """Reduce."""
        ctx.name, ctx.op, ctx.scales = name, op, scales
        result: Tensor = synchronize(allreduce_async(tensor, None, name, op, *scales))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Reduce the gradient the same way."""
        reduced = apply(Allreduce, grads[0], _back(ctx.name), ctx.op, ctx.scales)
        return reduced, None, None, None


class GroupedAllreduce(torch.autograd.Function):
    """Out of place, together."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, scales: tuple[float, float], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Reduce all."""
        ctx.name, ctx.op, ctx.scales = name, op, scales
        result: tuple[Tensor, ...] = synchronize(grouped_allreduce_async(tensors, None, name, op, *scales))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Reduce the gradients the same way."""
        return (None, None, None, *apply(GroupedAllreduce, _back(ctx.name), ctx.op, ctx.scales, *grads))


class Allgather(torch.autograd.Function):
    """Concatenation of rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None) -> Tensor:
        """Gather."""
        ctx.name, ctx.rows = name, tensor.shape[0]
        result: Tensor = synchronize(allgather_async(tensor, name))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Average, and keep this rank's rows."""
        back = _back(ctx.name)
        average = synchronize(allreduce_async(grads[0], None, back))
        rows = synchronize(allgather_async(torch.tensor([ctx.rows]), back and f"{back}.rows")).tolist()
        rank = _session.rank()
        start = sum(rows[:rank])
        return average[start : start + rows[rank]], None


class Broadcast(torch.autograd.Function):
    """The root's tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None) -> Tensor:
        """Broadcast."""
        ctx.name, ctx.root = name, root_rank
        result: Tensor = synchronize(broadcast_async(tensor, root_rank, name))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Average; only the root's input had a part in the result."""
        average = synchronize(allreduce_async_(grads[0].clone(), None, _back(ctx.name)))
        return (average if _session.rank() == ctx.root else torch.zeros_like(average)), None, None
