"""Gradients of a library's optimizers, averaged as soon as a backward pass is over: before the library reads them.

Terms.
  held back gradients of a backward pass that are not reduced yet, because the library accumulates batches
  reduced   optimizers whose gradients are the average of all ranks since their last step
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

import hvd_kernel.torch as hvd

_NEVER = sys.maxsize  # backward passes per step: no gradient is reduced automatically


def share(model: torch.nn.Module) -> None:
    """Broadcast the parameters and buffers of a model from rank 0."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    hvd.broadcast_parameters({name: tensor.detach() for name, tensor in tensors.items()}, root_rank=0)


def share_state(optimizer: Any) -> None:
    """Broadcast the state of a DistributedOptimizer from rank 0, except for LBFGS.

    The state of LBFGS cannot be sent; it is new, or every rank has read it from the same checkpoint.
    """
    if not isinstance(optimizer, torch.optim.LBFGS):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)


def distributed(plain: torch.optim.Optimizer, model: torch.nn.Module, label: str, options: dict[str, Any]) -> Any:
    """Wrap an optimizer as a DistributedOptimizer; name parameters that the model lacks after the label."""
    names = {param: name for name, param in model.named_parameters()}
    params = [param for group in plain.param_groups for param in group["params"]]
    named = [(names.get(param, f"{label}.{i}"), param) for i, param in enumerate(params)]
    return hvd.DistributedOptimizer(plain, named_parameters=named, **options)


class Averaging:
    """Averages the gradients of the DistributedOptimizers that ``optimizers`` returns, once per step."""

    def __init__(self, optimizers: Callable[[], Iterable[Any]]) -> None:
        self._find_optimizers = optimizers
        self._reduced: set[Any] = set()
        self._held_back = False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Accumulate gradients on this rank; their sum is reduced once, afterwards."""
        self._hold_back(passes=_NEVER)
        try:
            yield
        finally:
            self._hold_back(passes=1)

    def _hold_back(self, passes: int) -> None:
        self._held_back = passes == _NEVER
        for optimizer in self._find_optimizers():
            optimizer.set_backward_passes_per_step(passes)

    def after_backward(self) -> None:
        """Average the gradients that the backward pass has computed."""
        if not self._held_back:
            for optimizer in self._find_optimizers():
                if optimizer.has_gradients:
                    self._reduce(optimizer)

    def before_step(self, optimizer: Any) -> None:
        """Average now if no backward pass of this rank reached the optimizer: the other ranks wait for this rank."""
        if optimizer not in self._reduced:
            self._reduce(optimizer)
        self._reduced.discard(optimizer)

    def _reduce(self, optimizer: Any) -> None:
        optimizer.synchronize()
        self._reduced.add(optimizer)

    @staticmethod
    def stepping(optimizer: Any) -> AbstractContextManager[None]:
        """Return a context in which ``step`` does not reduce again; with Adasum it does, as it reduces the step."""
        if optimizer.op == hvd.Adasum and hvd.size() > 1:
            return nullcontext()
        skipping: AbstractContextManager[None] = optimizer.skip_synchronize()
        return skipping
