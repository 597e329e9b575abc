"""Broadcast of parameters, optimizer state and objects. Horovod's signatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core import session
from hvd_kernel.core.ops import allgather_object, broadcast_object, synchronize
from hvd_kernel.protocol.distributed_tensors import described, is_distributed
from hvd_kernel.torch.async_ops import broadcast_async_
from hvd_kernel.torch.slots import empty_sparse

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]

_EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrite tensors with the root's: usually ``model.state_dict()``, or a list of tensors or (name, tensor) pairs.

    Parameters
    ----------
    params
        A dict of tensors, with the same names on every rank, or a list. Shapes and dtypes must be equal on all ranks.
    root_rank
        The rank whose tensors are sent.

    Raises
    ------
    ValueError
        ``params`` is neither a dict nor a list, or contains DTensors, or other values than tensors.
    HorovodInternalError
        The shape or dtype of a tensor differs (Mismatch, on every rank), or a rank has failed.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1)
    >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    >>> weights = torch.full((2,), float(hvd.rank()))
    >>> hvd.broadcast_parameters({"weights": weights}, root_rank=0)
    >>> weights
    tensor([0., 0.])
    """
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, list):
        named = [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")  # noqa: TRY004 - Horovod's error
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise ValueError(  # noqa: TRY004 - a wrong value in the dict
                f"{name!r} is a {type(tensor).__name__}, not a tensor: use broadcast_object for it."
            )
        _refuse_distributed(repr(name), tensor)
    for handle in [broadcast_async_(tensor, root_rank, name) for name, tensor in named]:
        synchronize(handle)


def _refuse_distributed(name: str, tensor: Any) -> None:
    """Raise ValueError if a tensor is a DTensor: the root's part must not overwrite the other ranks' parts."""
    if is_distributed(tensor):
        raise ValueError(not_broadcast(name, tensor))


def not_broadcast(name: str, tensor: Any) -> str:
    """Return the message for a DTensor that all ranks would receive from the root."""
    return (
        f"{name} is a {described(tensor)}, and the root's part of it would overwrite those of the other ranks: "
        "torch.distributed.checkpoint saves and loads it"
    )


@dataclass(frozen=True)
class _Form:
    """Description of a tensor that another rank needs to receive it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_device: bool  # on its parameter's device; False: on the CPU


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Broadcast the root's optimizer state and options, with values and Python types.

    The root sends the structure, so no rank needs to take a step to create the state. As with Horovod, if there was no
    state, every trained parameter has a gradient of zeros afterwards; a sparse one for sparse embeddings of ``model``.

    Parameters
    ----------
    optimizer
        An optimizer of the same parameters on every rank, distributed or not.
    root_rank
        The rank whose state and options are sent.
    model
        The model, if it has embeddings with sparse gradients.

    Raises
    ------
    ValueError
        The optimizer is LBFGS, whose state cannot be broadcast, or optimizes DTensors; or the ranks optimize different
        parameters.
    HorovodInternalError
        A rank has failed, or Horovod is not initialised.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + hvd.rank()))
    >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    >>> optimizer.param_groups[0]["lr"]
    0.1
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")  # noqa: TRY004 - Horovod's error
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for number, param in enumerate(params):
        _refuse_distributed(f"parameter {number}", param)
    if not optimizer.state:
        _make_gradients(params, _sparse(optimizer, params, model))
    shapes = [tuple(param.shape) for param in params]
    forms = _forms(optimizer, params) if session.rank() == root_rank else None
    root_shapes, options, states = broadcast_object((shapes, *(forms or ([], []))), root_rank, "optimizer_state")
    if root_shapes != shapes:
        raise ValueError(
            f"Rank {session.rank()} optimizes parameters of shapes {shapes}, rank {root_rank} {root_shapes}."
        )
    tensors: dict[str, Tensor] = {}
    for number, (group, root_options) in enumerate(zip(optimizer.param_groups, options, strict=True)):
        _fill(group, root_options, params[0].device, f"option.{number}", tensors)
    for number, (param, root_state) in enumerate(zip(params, states, strict=True)):
        if root_state or param in optimizer.state:
            state = optimizer.state[param]
            for name in [name for name in state if name not in root_state]:
                del state[name]
            _fill(state, root_state, param.device, f"state.{number}", tensors)
    broadcast_parameters(tensors, root_rank)


def _sparse(optimizer: torch.optim.Optimizer, params: list[Tensor], model: torch.nn.Module | None) -> set[int]:
    """Return the ids of parameters with sparse gradients."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return {id(param) for param in params}
    layers = () if model is None else model.modules()
    return {id(layer.weight) for layer in layers if isinstance(layer, _EMBEDDINGS) and layer.sparse}


def _make_gradients(params: list[Tensor], sparse: set[int]) -> None:
    for param in params:
        if param.requires_grad and param.grad is None:
            param.grad = empty_sparse(param, 1) if id(param) in sparse else torch.zeros_like(param)


def _forms(optimizer: torch.optim.Optimizer, params: list[Tensor]) -> tuple[list[Any], list[Any]]:
    """Return the options of each group and the state of each parameter, tensors as forms."""
    first = params[0].device
    options = [
        {name: _form(value, first) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    states = [
        {name: _form(value, param.device) for name, value in optimizer.state.get(param, {}).items()} for param in params
    ]
    return options, states


def _form(value: Any, device: torch.device) -> Any:
    if not isinstance(value, Tensor):
        return value
    return _Form(tuple(value.shape), value.dtype, value.device == device)


def _fill(
    target: dict[str, Any], received: dict[str, Any], device: torch.device, label: str, out: dict[str, Tensor]
) -> None:
    """Store received values; allocate tensors, and collect them in ``out`` for the broadcast."""
    for name, value in received.items():
        if not isinstance(value, _Form):
            target[name] = value
            continue
        tensor = target.get(name)
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != value.shape or tensor.dtype != value.dtype:
            target[name] = torch.empty(value.shape, dtype=value.dtype, device=device if value.on_device else "cpu")
        out[f"optimizer_state.{label}.{name}"] = target[name]
