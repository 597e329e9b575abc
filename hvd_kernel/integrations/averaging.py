"""Gradients of a library's optimizers, averaged as soon as a backward pass is over: before the library looks at them.

Terms.
  made      a DistributedOptimizer
  held back gradients of a backward pass whose sum is not asked for yet: batches are accumulated
  reduced   optimizers whose gradients are the ranks' average since their last step
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

import hvd_kernel.torch as hvd

_NEVER = sys.maxsize  # backward passes per step: no gradient travels by itself
Found = Callable[[], Iterable[Any]]


def share(model: torch.nn.Module) -> None:
    """Give every rank rank 0's parameters and buffers."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    hvd.broadcast_parameters({name: tensor.detach() for name, tensor in tensors.items()}, root_rank=0)


def share_state(made: Any) -> None:
    """Give every rank rank 0's state of an optimizer, where it can be sent.

    That of LBFGS cannot; it is new, or of a checkpoint that every rank has read.
    """
    if not isinstance(made, torch.optim.LBFGS):
        hvd.broadcast_optimizer_state(made, root_rank=0)


def distributed(plain: torch.optim.Optimizer, model: torch.nn.Module, label: str, options: dict[str, Any]) -> Any:
    """Return the optimizer, made distributed; parameters that are not the model's get names from the label."""
    names = {param: name for name, param in model.named_parameters()}
    params = [param for group in plain.param_groups for param in group["params"]]
    named = [(names.get(param, f"{label}.{i}"), param) for i, param in enumerate(params)]
    return hvd.DistributedOptimizer(plain, named_parameters=named, **options)


class Averaging:
    """Which optimizers' gradients are averaged already. ``found`` gives the optimizers there are."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._reduced: set[Any] = set()
        self._held_back = False

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Sum gradients on this rank alone: batches are accumulated, and their sum travels once."""
        self._hold_back(passes=_NEVER)
        try:
            yield
        finally:
            self._hold_back(passes=1)

    def _hold_back(self, passes: int) -> None:
        self._held_back = passes == _NEVER
        for made in self._found():
            made.set_backward_passes_per_step(passes)

    def after_backward(self) -> None:
        """Average what the backward pass has computed."""
        if not self._held_back:
            for made in self._found():
                if made.has_gradients:
                    self._reduce(made)

    def before_step(self, made: Any) -> None:
        """Average now, where no backward pass of this rank has reached the optimizer: the other ranks wait for it."""
        if made not in self._reduced:
            self._reduce(made)
        self._reduced.discard(made)

    def _reduce(self, made: Any) -> None:
        made.synchronize()
        self._reduced.add(made)

    @staticmethod
    def stepping(made: Any) -> AbstractContextManager[None]:
        """Have ``step`` take gradients as they are; Adasum's step is what travels, and cannot be kept from it."""
        if made.op == hvd.Adasum and hvd.size() > 1:
            return nullcontext()
        skipping: AbstractContextManager[None] = made.skip_synchronize()
        return skipping
