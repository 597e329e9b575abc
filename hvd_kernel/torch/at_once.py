"""The usual allreduce of torch tensors, in one function of the core."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from hvd_kernel.core.handles import FastCalls

_exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
calls = FastCalls(Tensor, Parameter, _exchange, readable=_exchange is not None)  # torch 2.10 and newer


def is_plain(tensor: Any) -> bool:
    """Tell whether an operation on this tensor is nothing to autograd, and may be one for ``calls``."""
    return type(tensor) is Tensor and tensor.is_cpu and not (tensor.requires_grad and torch.is_grad_enabled())


def are_plain(tensors: Any) -> bool:
    """Tell the same of a group; what can be read only once is not read."""
    return type(tensors) in {list, tuple} and all(map(is_plain, tensors))
