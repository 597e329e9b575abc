"""Training samples per step, found without user code: the batch size of what goes into the model.

The model is the outermost module that owns a parameter of the optimizer. It is found on its first forward pass, by a
hook on all modules that then goes away; what stays is one plain hook on the model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook


class SampleMeter:
    """Counts samples that went forward in training mode since the last ``take``."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self.params = {id(param) for param in params}
        self.pending = 0
        _search(weakref.ref(self))

    def take(self) -> int:
        """Return the samples counted since the last call."""
        pending, self.pending = self.pending, 0
        return pending

    def owns_part_of(self, module: torch.nn.Module) -> bool:
        """Tell whether the optimizer has a parameter of this module."""
        return any(id(param) in self.params for param in module.parameters())

    def count(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what goes into the model: the length of its first tensor."""
        if module.training and torch.is_grad_enabled():
            tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.dim())
            self.pending += next((tensor.shape[0] for tensor in tensors), 0)


def _search(ref: weakref.ref[SampleMeter]) -> None:
    def look(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        meter = ref()
        if meter is None:
            hook.remove()
        elif meter.owns_part_of(module):
            hook.remove()
            _Count(module, ref)  # from the next call on
            meter.count(module, args, {})

    hook = register_module_forward_pre_hook(look)


class _Count:
    """The hook that stays. A model that is pickled leaves it behind: it belongs to an optimizer of this process."""

    def __init__(self, model: torch.nn.Module, ref: weakref.ref[SampleMeter]) -> None:
        self._ref = ref
        self._hook = model.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        meter = self._ref()
        if meter is None:
            self._hook.remove()
        else:
            meter.count(module, args, kwargs)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_count, ()


def _no_count() -> Callable[..., None]:
    return _count_nothing


def _count_nothing(_module: torch.nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Stand in for the hook in another process."""
