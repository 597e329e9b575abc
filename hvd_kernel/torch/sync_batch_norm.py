"""Batch normalisation over the samples of all ranks, as one process computes it for the whole batch.

Terms.
  channel  dimension 1; the statistics of a channel are those of the values in all other dimensions
  moments  of a channel: its mean, and the sum of the squared distances from it
  wide     the type of sums: at least float32
  normal   the input with mean 0 and variance 1 in every channel
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from hvd_kernel.core import session
from hvd_kernel.core.ops import Sum, synchronize
from hvd_kernel.core.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.torch import async_ops

_PLAIN = (1.0, 1.0)


class SyncBatchNorm(_BatchNorm):
    """A ``torch.nn.BatchNorm*d`` for any number of dimensions, whose training statistics are those of all ranks.

    Ranks may have different numbers of samples, or none. In eval mode, on one rank and on ranks outside the process set
    it is the plain layer. As everywhere in Horovod, the gradients of weight and bias are this rank's part.

    Parameters
    ----------
    num_features
        Number of channels: dimension 1 of the input, which has at least 2 dimensions and a floating point type.
    eps, momentum, affine, track_running_stats, device, dtype
        As in ``torch.nn.BatchNorm1d``.
    process_set
        The ranks whose samples count.

    Raises
    ------
    ValueError
        From a call of the layer: the input has another number of channels or too few dimensions; on every rank: all
        ranks together have one value per channel, or the set is not registered.

    Examples
    --------
    >>> layer = hvd.SyncBatchNorm(1, affine=False)
    >>> layer(torch.tensor([[-1.0], [1.0]])).sign().flatten()
    tensor([-1.,  1.])

    On two ranks:

    >>> sample = torch.tensor([[2.0 * hvd.rank() - 1.0]])  # a single sample has no variance
    >>> layer(sample).sign().item() == sample.item()
    True
    """

    process_set: ProcessSet

    def __init__(  # noqa: PLR0917 - Horovod's order, then torch's
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_set = process_set

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise the input."""
        self._check_input_dim(input)
        if not self.training or not self._is_shared():
            return super().forward(input)
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels in dimension 1 (got {tuple(input.shape)})")
        output, mean, variance, count = _Normalise.apply(input, self.weight, self.bias, self.eps, self.process_set)  # type: ignore[no-untyped-call]
        if self.track_running_stats:
            self._update_running(mean, variance * (count / (count - 1)))
        result: Tensor = output
        return result

    def _is_shared(self) -> bool:
        check(self.process_set)
        return session.size() > 1 and bool(self.process_set.included()) and self.process_set.size() != 1

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics; with momentum None they are the average of all batches."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            assert running is not None
            running.mul_(1.0 - factor).add_(factor * new.to(running.dtype))

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:  # noqa: PLR2004 - samples and channels
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")


def convert_sync_batchnorm(module: torch.nn.Module, process_set: ProcessSet = global_process_set) -> torch.nn.Module:
    """Replace every batch normalisation in a module by ``SyncBatchNorm``, and return the module.

    Parameters, buffers and hooks stay the same objects, so that existing optimizers remain valid.

    Parameters
    ----------
    module
        A model, which is changed in place, or a layer.
    process_set
        The ranks whose samples count.

    Raises
    ------
    ValueError
        A lazy layer has no size yet.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    >>> weight = model[1].weight
    >>> layer = hvd.convert_sync_batchnorm(model)[1]
    >>> type(layer).__name__, layer.weight is weight
    ('SyncBatchNorm', True)
    """
    return _converted(module, process_set, {})


def _converted(module: torch.nn.Module, process_set: ProcessSet, done: dict[int, torch.nn.Module]) -> torch.nn.Module:
    if id(module) not in done:  # a layer in two places stays one layer
        done[id(module)] = _synchronised(module, process_set) if isinstance(module, _BatchNorm) else module
        for name, child in module._modules.items():  # noqa: SLF001 - named_children leaves the second place out
            if child is not None:
                module._modules[name] = _converted(child, process_set, done)  # noqa: SLF001
    return done[id(module)]


def _synchronised(layer: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
    if not layer.num_features:
        raise ValueError(f"{layer} does not know its size yet: run the model once before convert_sync_batchnorm.")
    synchronised = SyncBatchNorm.__new__(SyncBatchNorm)
    vars(synchronised).update(vars(layer))
    synchronised.process_set = process_set
    return synchronised


class _Normalise(torch.autograd.Function):
    """The layer in training. Operations have the same names in every layer, as all ranks run layers in one order."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return the output, and mean, variance and number of values of each channel, over all ranks."""
        wide = x.to(_wide(x.dtype))
        mean, variance, count = _all_moments(wide, process_set)
        scale = torch.rsqrt(variance + eps)
        output = _normal(wide, mean, scale)
        if weight is not None:
            output *= _spread(weight, x)
        if bias is not None:
            output += _spread(bias, x)
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.count, ctx.set, ctx.bias = count, process_set, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(mean, variance)
        return output.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients: every input contributes to the statistics of all ranks."""
        x, weight, mean, scale = ctx.saved_tensors
        dy, normal = grads[0].to(mean.dtype), _normal(x.to(mean.dtype), mean, scale)
        sums = torch.stack([dy.sum(_others(x)), (dy * normal).sum(_others(x))])
        handle = async_ops.allreduce(sums, "sync_batch_norm.sums", Sum, _PLAIN, ctx.set, waits=True)
        means = synchronize(handle) / ctx.count
        dx = (dy - _spread(means[0], x) - normal * _spread(means[1], x)) * _spread(scale, x)
        if weight is not None:
            dx *= _spread(weight, x)
        return (
            dx.to(x.dtype),
            None if weight is None else sums[1].to(weight.dtype),
            None if ctx.bias is None else sums[0].to(ctx.bias),
            None,
            None,
        )


def _all_moments(x: Tensor, process_set: ProcessSet) -> tuple[Tensor, Tensor, float]:
    """Return mean, variance and number of values of each channel over all ranks, bitwise equal on all ranks.

    Raises
    ------
    ValueError
        On every rank: all ranks together have one value per channel.
    """
    channels, local_count = x.shape[1], x.numel() // max(x.shape[1], 1)
    row = x.new_zeros(2 * channels + 1, dtype=torch.float64)  # counts and differences of means need the precision
    if local_count:
        variance, mean = torch.var_mean(x, _others(x), correction=0)
        row = torch.cat([mean.double(), variance.double() * local_count, row.new_tensor([local_count])])
    rows: Tensor = synchronize(async_ops.allgather(row[None], "sync_batch_norm.moments", process_set, waits=True))
    means, squares, counts = rows[:, :channels], rows[:, channels:-1], rows[:, -1:]
    count = float(counts.sum())
    if count <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    mean = (means * counts).sum(0) / count
    variance = (squares + counts * (means - mean).square()).sum(0) / count
    return mean.to(x.dtype), variance.to(x.dtype), count


def _wide(kind: torch.dtype) -> torch.dtype:
    return torch.promote_types(kind, torch.float32)


def _others(x: Tensor) -> list[int]:
    """Return all dimensions except that of the channels."""
    return [0, *range(2, x.dim())]


def _spread(per_channel: Tensor, x: Tensor) -> Tensor:
    return per_channel.view(1, -1, *[1] * (x.dim() - 2))


def _normal(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return (x - _spread(mean, x)) * _spread(scale, x)
