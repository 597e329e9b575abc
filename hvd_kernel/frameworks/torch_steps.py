"""Hooks on torch: on the steps of all optimizers, and on the construction of modules.

torch/step_digests.py, loaded at the first step, counts the steps. With it the panel shows a cell that trains with a
plain optimizer and never mentions ``hvd``, the guard against training apart watches it, and a rank that only imports
torch loads nothing. The modules are known so that the model of such an optimizer can be found (torch/samples.py).
"""

from __future__ import annotations

import importlib
import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any

from hvd_kernel.frameworks import torch_batches

_LOG = logging.getLogger("hvd_kernel")
_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_parents: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


@cache
def attach(torch: ModuleType) -> None:
    """Register the hooks, once per process. torch iterates over its hooks, so they are never removed."""
    hooks = importlib.import_module(f"{torch.__name__}.optim.optimizer")
    is_compiling = torch.compiler.is_compiling

    def on_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_compiling():  # a graph has no hook
            _counter()(optimizer)

    hooks.register_optimizer_step_post_hook(on_step)
    modules = importlib.import_module(f"{torch.__name__}.nn.modules.module")
    modules.register_module_parameter_registration_hook(_on_parameter)
    modules.register_module_module_registration_hook(_on_submodule)
    torch_batches.attach(torch)


def owners() -> list[Any]:
    """Return the modules that were built with parameters of their own, and still exist."""
    return list(_owners)


def parent(module: Any) -> Any:
    """Return the module that most recently got a module as a part, if it still exists; else None."""
    reference = _parents.get(module)
    return None if reference is None else reference()


def _on_parameter(module: Any, _name: str, _parameter: Any) -> None:
    with suppress(TypeError):  # a module without a hash
        _owners.add(module)


def _on_submodule(module: Any, _name: str, submodule: Any) -> None:
    if submodule is not None:
        with suppress(TypeError):
            _parents[submodule] = weakref.ref(module)


@cache
def _counter() -> Callable[[Any], None]:
    try:
        on_step: Callable[[Any], None] = importlib.import_module("hvd_kernel.torch.step_digests").on_step
    except ImportError as error:  # torch is too old for our API, and training goes on
        _LOG.debug("optimizer steps are not watched: %s", error)
        return lambda _: None
    return on_step
