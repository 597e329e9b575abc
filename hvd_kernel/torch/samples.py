"""Training samples, counted without user code: of a DataLoader's batches, else the batch size of the model's input.

A model is found among the modules that torch has registered (frameworks/torch_steps.py), so no hook on all modules is
needed, and ``torch.compile`` does not notice the search. A plain optimizer is known from its first step on, when its
model has been called. A ``DistributedOptimizer`` whose model was built before is searched at its first forward pass.

Terms.
  model   the outermost module that owns a parameter of an optimizer, and is called
  line    a module and those that contain it, each in the next one
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from hvd_kernel.frameworks import torch_steps
from hvd_kernel.frameworks.torch_batches import batches, samples_of

_CALLED = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule"})
"""Classes that are called instead of the module they contain."""


class SampleMeter:
    """Counts the training samples between two steps of an optimizer."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self.params = {id(param) for param in params}
        self.pending = 0
        self.has_stepped = False
        self.is_attached = False  # to a model
        self._batches = batches.count

    def pop(self) -> int:
        """Return the number of samples since the last call: those that DataLoaders yielded, if they did."""
        pending, self.pending = self.pending, 0
        has_batches, self._batches = batches.count != self._batches, batches.count
        return batches.pop() if has_batches else pending

    def owns_part_of(self, module: torch.nn.Module) -> bool:
        """Return whether the optimizer has a parameter of the module."""
        return any(id(param) in self.params for param in module.parameters())

    def count(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count the samples of a call of the model: the length of its first tensor."""
        if module.training and torch.is_grad_enabled():
            self.pending += samples_of((*args, *kwargs.values()))


def meter_of_wrapped(params: Iterable[Tensor]) -> SampleMeter:
    """Return a meter for a DistributedOptimizer, whose model may not have been called yet.

    A hook on all modules makes ``torch.compile`` warn, so it is used only for a model that torch has not registered.
    """
    params = list(params)
    meter = meter_of_model(params)
    return meter if meter.is_attached else meter_before_first_call(params)


def meter_before_first_call(params: Iterable[Tensor]) -> SampleMeter:
    """Return a meter that finds its model at the next forward pass, by a hook on all modules that is then removed."""
    meter = SampleMeter(params)
    ref = weakref.ref(meter)

    def check(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        meter = ref()
        if meter is None:
            hook.remove()
        elif meter.owns_part_of(module):
            hook.remove()
            _CountHook(module, ref)  # counts from the next call on
            meter.count(module, args, {})

    hook = register_module_forward_pre_hook(check)
    return meter


_meters: weakref.WeakKeyDictionary[torch.nn.Module, SampleMeter] = weakref.WeakKeyDictionary()  # of plain optimizers


def meter_of_model(params: Iterable[Tensor]) -> SampleMeter:
    """Return a meter for a plain optimizer, whose model has been called already; one meter for equal models.

    It counts from the next call on, and nothing if the modules were not built by their constructors, as after
    ``torch.load``.
    """
    meter = SampleMeter(params)
    owner = next((module for module in torch_steps.owners() if _owns(module, meter.params)), None)
    line = _line(owner)
    for module in line:
        if module in _meters:
            return _meters[module]
    hooks: list[_CountHook] = []
    for module in line:
        hooks.append(_CountHook(module, weakref.ref(meter), hooks))
        _meters[module] = meter
        meter.is_attached = True
    return meter


def _owns(module: torch.nn.Module, params: set[int]) -> bool:
    return any(id(param) in params for param in module.parameters(recurse=False))


def _line(owner: torch.nn.Module | None) -> list[torch.nn.Module]:
    """Return the modules of a line that may be called, innermost first."""
    line: list[torch.nn.Module] = []
    while owner is not None and owner not in line:
        if type(owner).__name__ in _CALLED:
            line.clear()
        line.append(owner)
        owner = torch_steps.parent(owner)
    return line


_count_nothing = nullcontext().__exit__
"""Replaces the hook in a pickled model, which can then be loaded where this package is not installed."""


class _CountHook:
    """Hook on a module. It is not pickled with the module, as it belongs to an optimizer of this process.

    ``line``: the hooks on other modules of the line. The first one that is called is on the model, and removes them.
    """

    def __init__(
        self, module: torch.nn.Module, ref: weakref.ref[SampleMeter], line: list[_CountHook] | None = None
    ) -> None:
        self._ref = ref
        self._line = line
        self._hook = module.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():  # a graph has no hook
            return
        if self._line and module.training and torch.is_grad_enabled():
            for other in self._line:
                if other is not self:
                    other.remove()
            self._line = None
        meter = self._ref()
        if meter is None:
            self.remove()
        else:
            meter.count(module, args, kwargs)

    def remove(self) -> None:
        """Remove the hook from its module."""
        self._hook.remove()

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return self if self._line is None else _count_nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), _count_nothing.__name__)
