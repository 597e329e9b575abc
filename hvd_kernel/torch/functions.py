"""Broadcast of one rank's parameters, optimizer state or objects to all. Horovod's signatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core import session
from hvd_kernel.core.ops import allgather_object, broadcast_object, synchronize
from hvd_kernel.torch.async_ops import broadcast_async_
from hvd_kernel.torch.training.slots import nothing_sparse

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]

_EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrite tensors by the root's: usually ``model.state_dict()``, else a list of tensors or of (name, tensor).

    Parameters
    ----------
    params
        A dict of tensors, of the same names on every rank, or a list. Each tensor has the same shape and dtype on all.
    root_rank
        Whose tensors all ranks get.

    Raises
    ------
    ValueError
        Neither a dict nor a list, or not all of it tensors.
    HorovodInternalError
        A tensor's shape or dtype differs (Mismatch, on every rank), or a rank has failed.

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
    for handle in [broadcast_async_(tensor, root_rank, name) for name, tensor in named]:
        synchronize(handle)


@dataclass(frozen=True)
class _Form:
    """A tensor without its values: what another rank needs to receive them."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    beside: bool  # lies on its parameter's device; else on the CPU


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give every rank the root's optimizer state and options, values and Python types alike.

    The root says what there is, so no rank has to take a step to make room for it. As with Horovod, where there was
    no state every trained parameter has a gradient afterwards, of zeros; a sparse one where ``model`` says so.

    Parameters
    ----------
    optimizer
        Of the same parameters on every rank, distributed or not.
    root_rank
        Whose state and options all ranks get.
    model
        Where its embeddings have sparse gradients: the model.

    Raises
    ------
    ValueError
        LBFGS, whose state cannot be broadcast; or the ranks optimize different parameters.
    HorovodInternalError
        A rank has failed, or this one is not initialised.

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
    if not optimizer.state:
        _make_gradients(params, _sparse(optimizer, params, model))
    mine = [tuple(param.shape) for param in params]
    forms = _forms(optimizer, params) if session.rank() == root_rank else None
    roots, options, states = broadcast_object((mine, *(forms or ([], []))), root_rank, "optimizer_state")
    if roots != mine:
        raise ValueError(f"Rank {session.rank()} optimizes parameters of shapes {mine}, rank {root_rank} {roots}.")
    tensors: dict[str, Tensor] = {}
    for number, (group, wanted) in enumerate(zip(optimizer.param_groups, options, strict=True)):
        _fill(group, wanted, params[0].device, f"option.{number}", tensors)
    for number, (param, wanted) in enumerate(zip(params, states, strict=True)):
        if wanted or param in optimizer.state:
            state = optimizer.state[param]
            for name in [name for name in state if name not in wanted]:
                del state[name]
            _fill(state, wanted, param.device, f"state.{number}", tensors)
    broadcast_parameters(tensors, root_rank)


def _sparse(optimizer: torch.optim.Optimizer, params: list[Tensor], model: torch.nn.Module | None) -> set[int]:
    """Return the ids of parameters that get sparse gradients."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return {id(param) for param in params}
    layers = () if model is None else model.modules()
    return {id(layer.weight) for layer in layers if isinstance(layer, _EMBEDDINGS) and layer.sparse}


def _make_gradients(params: list[Tensor], sparse: set[int]) -> None:
    for param in params:
        if param.requires_grad and param.grad is None:
            param.grad = nothing_sparse(param, 1) if id(param) in sparse else torch.zeros_like(param)


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
    own: dict[str, Any], wanted: dict[str, Any], device: torch.device, label: str, out: dict[str, Tensor]
) -> None:
    """Take over values; make room for tensors, and collect them for the broadcast."""
    for name, value in wanted.items():
        if not isinstance(value, _Form):
            own[name] = value
            continue
        here = own.get(name)
        if not isinstance(here, Tensor) or tuple(here.shape) != value.shape or here.dtype != value.dtype:
            own[name] = torch.empty(value.shape, dtype=value.dtype, device=device if value.beside else "cpu")
        out[f"optimizer_state.{label}.{name}"] = own[name]
