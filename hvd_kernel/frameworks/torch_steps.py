"""Hook on the steps of all torch optimizers: torch/step_digests.py, loaded at the first step, counts them.

With it the guard against training apart watches a cell that trains with a plain optimizer and never mentions ``hvd``,
and a rank that only imports torch loads nothing.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

_LOG = logging.getLogger("hvd_kernel")


@cache
def attach(torch: ModuleType) -> None:
    """Register the hook, once per process. torch iterates over its hooks, so the hook is never removed."""
    hooks = importlib.import_module(f"{torch.__name__}.optim.optimizer")
    hooks.register_optimizer_step_post_hook(_on_step)


def _on_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    _counter()(optimizer)


@cache
def _counter() -> Callable[[Any], None]:
    try:
        on_step: Callable[[Any], None] = importlib.import_module("hvd_kernel.torch.step_digests").on_step
    except ImportError as error:  # torch is too old for our API, and training goes on
        _LOG.debug("optimizer steps are not watched: %s", error)
        return lambda _: None
    return on_step
