"""The derivative of each collective, as Horovod defines it, under its names and with its signatures.

allreduce      the gradients, reduced in the same way
allgather      the average of the gradients; each rank keeps its own rows
broadcast      the average of the gradients on the root, zero on other ranks
alltoall       the gradient of every row, sent back to the rank of the row
reducescatter  the gradients of all shares, times the number of ranks if the operation is a sum

Each derivative consists of these operations again, so it has a derivative (``create_graph=True``), on every rank: a
rank that does not contribute to a value still takes part in the reduction.
"""

# ruff: noqa: PLR0917 - autograd passes by position

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core import session
from hvd_kernel.core.handles import Scales
from hvd_kernel.core.ops import Average, Sum, synchronize
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.core.tensor import reduction_of
from hvd_kernel.torch import async_ops


def apply(function: Any, *args: Any) -> Any:
    """Run one of these functions, recorded by autograd."""
    return function.apply(*args)


def _back(name: str | None) -> str | None:
    """Return the name of the operation in backward, by which ranks match it as in forward."""
    return f"{name}.grad" if name else None


class HorovodAllreduce(torch.autograd.Function):
    """Allreduce into a new tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> Tensor:
        """Reduce the tensor."""
        op = reduction_of(op, average)
        ctx.arguments = (None, _back(name), op, prescale_factor, postscale_factor, process_set)
        scales = (prescale_factor, postscale_factor)
        result: Tensor = synchronize(async_ops.allreduce(tensor, name, op, scales, process_set, waits=True))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Reduce the gradient in the same way."""
        return apply(HorovodAllreduce, grads[0], *ctx.arguments), None, None, None, None, None, None


class HorovodGroupedAllreduce(torch.autograd.Function):
    """Grouped allreduce into new tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Reduce the tensors."""
        op = reduction_of(op, average)
        ctx.arguments = (None, _back(name), op, prescale_factor, postscale_factor, process_set)
        scales = (prescale_factor, postscale_factor)
        handle = async_ops.grouped_allreduce(tensors, name, op, scales, process_set, waits=True)
        result: tuple[Tensor, ...] = synchronize(handle)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Reduce the gradients in the same way."""
        return (None, None, None, None, None, None, *apply(HorovodGroupedAllreduce, *ctx.arguments, *grads))


class HorovodAllgather(torch.autograd.Function):
    """Concatenation of rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        """Gather the rows of all ranks."""
        result: Tensor = synchronize(async_ops.allgather(tensor, name, process_set, waits=True))
        ctx.name, ctx.set, ctx.rows = name, process_set, tensor.shape[0]
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Average the gradients, and keep this rank's rows."""
        return (*_local_rows(ctx.name, ctx.set, [ctx.rows], grads), None, None)


class HorovodGroupedAllgather(torch.autograd.Function):
    """Concatenation of the rows of several tensors."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Gather the rows of all tensors."""
        handle = async_ops.grouped_allgather(tensors, name, process_set, waits=True)
        result: tuple[Tensor, ...] = synchronize(handle)
        ctx.name, ctx.set, ctx.rows = name, process_set, [tensor.shape[0] for tensor in tensors]
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Average the gradients, and keep this rank's rows of each."""
        return (None, None, *_local_rows(ctx.name, ctx.set, ctx.rows, grads))


def _local_rows(name: str | None, process_set: ProcessSet, rows: list[int], grads: tuple[Tensor, ...]) -> list[Tensor]:
    """Average gathered gradients, and return the rows that this rank contributed."""
    back, place = _back(name), process_set.rank() or 0
    means = apply(HorovodGroupedAllreduce, None, back, Average, 1.0, 1.0, process_set, *grads)
    counts = torch.tensor([rows])
    all_counts = synchronize(async_ops.allgather(counts, back and f"{back}.rows", process_set, waits=True))
    begins = all_counts[:place].sum(0).tolist()
    return [mean[begin : begin + count] for mean, begin, count in zip(means, begins, rows, strict=True)]


class HorovodBroadcast(torch.autograd.Function):
    """The root's tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        """Return the root's tensor."""
        ctx.name, ctx.root, ctx.set = name, root_rank, process_set
        result: Tensor = synchronize(async_ops.broadcast(tensor, root_rank, name, process_set, waits=True))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Average the gradients on the root; inputs of other ranks do not contribute to the result."""
        mean: Tensor = apply(HorovodAllreduce, grads[0], None, _back(ctx.name), Average, 1.0, 1.0, ctx.set)
        if session.rank() != ctx.root:
            mean = mean.masked_fill(torch.ones((), dtype=torch.bool, device=mean.device), 0.0)  # zero, in the graph
        return mean, None, None, None


class HorovodAlltoall(torch.autograd.Function):
    """Rows to every rank."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        """Exchange rows."""
        handle = async_ops.alltoall(tensor, splits, name, process_set, waits=True)
        output, received = synchronize(handle)
        ctx.name, ctx.set, ctx.received, ctx.shape = name, process_set, received, tensor.shape
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Send the gradients of rows back; rows that were not sent have zeros."""
        back, _ = apply(HorovodAlltoall, grads[0], ctx.received, _back(ctx.name), ctx.set)
        if back.shape[0] < ctx.shape[0]:
            back = torch.cat([back, back.new_zeros(ctx.shape[0] - back.shape[0], *ctx.shape[1:])])
        return back, None, None, None


class HorovodReducescatter(torch.autograd.Function):
    """Reducescatter: a reduction of which each rank keeps its rows."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> Tensor:
        """Reduce the tensor, and keep this rank's rows."""
        scales = (prescale_factor, postscale_factor)
        ctx.name, ctx.set, ctx.factor = name, process_set, _factor(op, scales, process_set)
        result: Tensor = synchronize(async_ops.reducescatter(tensor, name, op, scales, process_set, waits=True))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gather the gradients of all shares."""
        gathered = apply(HorovodAllgather, grads[0] * ctx.factor, _back(ctx.name), ctx.set)
        return gathered, None, None, None, None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    """Grouped reducescatter: reductions of which each rank keeps its rows."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Reduce the tensors, and keep this rank's rows."""
        scales = (prescale_factor, postscale_factor)
        ctx.name, ctx.set, ctx.factor = name, process_set, _factor(op, scales, process_set)
        handle = async_ops.grouped_reducescatter(tensors, name, op, scales, process_set, waits=True)
        result: tuple[Tensor, ...] = synchronize(handle)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gather the gradients of all shares of each tensor."""
        scaled = [grad * ctx.factor for grad in grads]
        return (None, None, None, None, None, *apply(HorovodGroupedAllgather, _back(ctx.name), ctx.set, *scaled))


def _factor(op: int, scales: Scales, process_set: ProcessSet) -> float:
    return scales[0] * scales[1] * ((process_set.size() or 1) if op == Sum else 1)
