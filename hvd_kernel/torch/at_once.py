"""The usual blocking allreduce of torch tensors, in one function of the core: ``fast_allreduce`` in core.handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hvd_kernel.core import handles
from hvd_kernel.core.stacks import call_stack


def _declines(*_: Any) -> bool:
    return False


def _first(*call: Any) -> bool:
    """Ask the core for its function, once there is a core. Before torch 2.10 its tensors cannot be read there."""
    global allreduce  # noqa: PLW0603 - of the process, as the core
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    made = handles.fast_allreduce(Tensor, Parameter, exchange) if exchange is not None else _declines
    if made is None:
        return False
    allreduce = made
    return made(*call)


allreduce: Callable[..., bool] = _first
call_stack.calls_core(__name__)  # by the first call


def is_plain(tensor: Any) -> bool:
    """Tell whether an operation on this tensor is nothing to autograd, and may be one for ``allreduce``."""
    return type(tensor) is Tensor and tensor.is_cpu and not (tensor.requires_grad and torch.is_grad_enabled())
