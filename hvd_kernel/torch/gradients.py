"""The derivative of each collective, as Horovod defines it, under its names and with its signatures.

allreduce      the gradients reduced the same way
allgather      the average of the gradients, of which each rank keeps its own rows
broadcast      the average of the gradients on the root, zero elsewhere
alltoall       every row's gradient sent back to where the row came from
reducescatter  the gradients of all shares, times the number of ranks where the operation is a sum

Each is made of these operations again, so a derivative has a derivative (``create_graph=True``), on every rank: who
has no part in a value still takes part in what is reduced.
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
from hvd_kernel.torch import dispatch


def apply(function: Any, *args: Any) -> Any:
    """Run one of these functions, so that autograd takes note."""
    return function.apply(*args)


def _back(name: str | None) -> str | None:
    """Name of the operation on the way back, so that ranks meet there as they met on the way forth."""
    return f"{name}.grad" if name else None


class HorovodAllreduce(torch.autograd.Function):
    """Out of place."""

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
        """Reduce."""
        op = reduction_of(op, average)
        ctx.how = (None, _back(name), op, prescale_factor, postscale_factor, process_set)
        scales = (prescale_factor, postscale_factor)
        result: Tensor = synchronize(dispatch.allreduce(tensor, name, op, scales, process_set, waits=True))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Reduce the gradient the same way."""
        return apply(HorovodAllreduce, grads[0], *ctx.how), None, None, None, None, None, None


class HorovodGroupedAllreduce(torch.autograd.Function):
    """Out of place, together."""

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
        """Reduce all."""
        op = reduction_of(op, average)
        ctx.how = (None, _back(name), op, prescale_factor, postscale_factor, process_set)
        scales = (prescale_factor, postscale_factor)
        handle = dispatch.grouped_allreduce(tensors, name, op, scales, process_set, waits=True)
        result: tuple[Tensor, ...] = synchronize(handle)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Reduce the gradients the same way."""
        return (None, None, None, None, None, None, *apply(HorovodGroupedAllreduce, *ctx.how, *grads))


class HorovodAllgather(torch.autograd.Function):
    """Concatenation of rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        """Gather."""
        result: Tensor = synchronize(dispatch.allgather(tensor, name, process_set, waits=True))
        ctx.name, ctx.set, ctx.rows = name, process_set, tensor.shape[0]
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Average, and keep this rank's rows."""
        return (*_own_rows(ctx.name, ctx.set, [ctx.rows], grads), None, None)


class HorovodGroupedAllgather(torch.autograd.Function):
    """Concatenation of the rows of several tensors."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Gather all."""
        handle = dispatch.grouped_allgather(tensors, name, process_set, waits=True)
        result: tuple[Tensor, ...] = synchronize(handle)
        ctx.name, ctx.set, ctx.rows = name, process_set, [tensor.shape[0] for tensor in tensors]
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Average, and keep this rank's rows of each."""
        return (None, None, *_own_rows(ctx.name, ctx.set, ctx.rows, grads))


def _own_rows(name: str | None, process_set: ProcessSet, rows: list[int], grads: tuple[Tensor, ...]) -> list[Tensor]:
    """Return of the averages of gathered gradients the rows that this rank had put in."""
    back, place = _back(name), process_set.rank() or 0
    means = apply(HorovodGroupedAllreduce, None, back, Average, 1.0, 1.0, process_set, *grads)
    counts = torch.tensor([rows])
    everyone = synchronize(dispatch.allgather(counts, back and f"{back}.rows", process_set, waits=True))
    begins = everyone[:place].sum(0).tolist()
    return [mean[begin : begin + own] for mean, begin, own in zip(means, begins, rows, strict=True)]


class HorovodBroadcast(torch.autograd.Function):
    """The root's tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        """Broadcast."""
        ctx.name, ctx.root, ctx.set = name, root_rank, process_set
        result: Tensor = synchronize(dispatch.broadcast(tensor, root_rank, name, process_set, waits=True))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Average; only the root's input had a part in the result."""
        mean: Tensor = apply(HorovodAllreduce, grads[0], None, _back(ctx.name), Average, 1.0, 1.0, ctx.set)
        if session.rank() != ctx.root:
            mean = mean.masked_fill(torch.ones((), dtype=torch.bool, device=mean.device), 0.0)  # zero, and of the graph
        return mean, None, None, None


class HorovodAlltoall(torch.autograd.Function):
    """Rows to every rank."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        """Exchange."""
        handle = dispatch.alltoall(tensor, splits, name, process_set, waits=True)
        output, received = synchronize(handle)
        ctx.name, ctx.set, ctx.received, ctx.shape = name, process_set, received, tensor.shape
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Send every row's gradient back; rows that were not sent have none."""
        back, _ = apply(HorovodAlltoall, grads[0], ctx.received, _back(ctx.name), ctx.set)
        if back.shape[0] < ctx.shape[0]:
            back = torch.cat([back, back.new_zeros(ctx.shape[0] - back.shape[0], *ctx.shape[1:])])
        return back, None, None, None


class HorovodReducescatter(torch.autograd.Function):
    """Own rows of the reduction."""

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
        """Reduce and scatter."""
        scales = (prescale_factor, postscale_factor)
        ctx.name, ctx.set, ctx.factor = name, process_set, _factor(op, scales, process_set)
        result: Tensor = synchronize(dispatch.reducescatter(tensor, name, op, scales, process_set, waits=True))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gather the gradients of all shares."""
        gathered = apply(HorovodAllgather, grads[0] * ctx.factor, _back(ctx.name), ctx.set)
        return gathered, None, None, None, None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    """Own rows of several reductions."""

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
        """Reduce and scatter all."""
        scales = (prescale_factor, postscale_factor)
        ctx.name, ctx.set, ctx.factor = name, process_set, _factor(op, scales, process_set)
        handle = dispatch.grouped_reducescatter(tensors, name, op, scales, process_set, waits=True)
        result: tuple[Tensor, ...] = synchronize(handle)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gather the gradients of all shares, of each."""
        scaled = [grad * ctx.factor for grad in grads]
        return (None, None, None, None, None, *apply(HorovodGroupedAllgather, _back(ctx.name), ctx.set, *scaled))


def _factor(op: int, scales: Scales, process_set: ProcessSet) -> float:
    return scales[0] * scales[1] * ((process_set.size() or 1) if op == Sum else 1)
