"""Steps of torch optimizers, for the panel, and digests of their parameters, for the guard against training apart.

A hook on all optimizers (frameworks/torch_steps.py) calls ``on_step``. A digest is a sum over a few elements of a few
parameters, computed after some of the steps. On a GPU it is copied to the host asynchronously and read later by
telemetry: a step never waits for the device.

Terms.
  round   steps of different plain optimizers without a forward pass in between, such as one for each parameter:
          together they are one step of the panel
"""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakKeyDictionary
from zlib import crc32

import torch
import torch.distributed
from torch import Tensor
from torch.optim import Optimizer

from hvd_kernel.core import metrics, training_steps
from hvd_kernel.core.training_steps import Read, Run, TrackedOptimizer
from hvd_kernel.frameworks import torch_steps
from hvd_kernel.torch.samples import SampleMeter, meter_of_model

_PARAMETERS, _ELEMENTS = 8, 16
"""Parameters in a digest, and elements of each."""

_NO_RUN = (-1, -1)
_PLAIN = (Tensor, torch.nn.Parameter)  # others, such as DTensor or FSDP's, are parts that may differ
_meters: WeakKeyDictionary[Optimizer, SampleMeter] = WeakKeyDictionary()
_round: tuple[Run, set[int]] = (_NO_RUN, set())  # ids of the optimizers that have taken a step in this round
_tracked: WeakKeyDictionary[Optimizer, tuple[Run, TrackedOptimizer | None]] = WeakKeyDictionary()  # None: not tracked


def on_step(optimizer: Optimizer) -> None:
    """Count a step of a plain optimizer; a DistributedOptimizer, whose step runs this hook too, counts its own."""
    if not getattr(type(optimizer), "counts_steps", False):
        _count(optimizer)
        stepped(optimizer, reduced=False)


def _count(optimizer: Optimizer) -> None:
    """Count a step and its samples for the panel. Never raises."""
    global _round  # noqa: PLW0603 - of the process
    try:
        meter = _meters.get(optimizer)
        if meter is None:
            meter = _meters[optimizer] = meter_of_model(_all_parameters(optimizer))
        samples, is_first = meter.pop(), not meter.has_stepped
        meter.has_stepped = True
    except Exception:  # noqa: BLE001 - of an unusual model: training goes on without a count of samples
        samples, is_first = 0, False
    run, members = _round
    begins = is_first or samples > 0 or run != training_steps.run_number() or id(optimizer) in members
    if begins:
        members = set()
        _round = training_steps.run_number(), members
    members.add(id(optimizer))
    metrics.step(samples, steps=int(begins))


def stepped(optimizer: Optimizer, *, reduced: bool) -> None:
    """Count a step of an optimizer, and compute a digest if one is due. Never raises."""
    if torch.compiler.is_compiling():
        return
    try:
        run, tracked = _tracked.get(optimizer, (_NO_RUN, None))
        if run != training_steps.run_number():
            tracked = _track(optimizer, reduced=reduced)
            _tracked[optimizer] = training_steps.run_number(), tracked
        if tracked is not None and tracked.step():
            tracked.add(_digest(_parameters(optimizer)))
    except Exception:  # noqa: BLE001 - of an unusual tensor: training goes on without a digest
        _tracked[optimizer] = training_steps.run_number(), None


def _track(optimizer: Optimizer, *, reduced: bool) -> TrackedOptimizer | None:
    parameters = _parameters(optimizer)
    if not parameters:
        return None
    shapes = crc32(repr([(tuple(parameter.shape), parameter.dtype) for parameter in parameters]).encode())
    nbytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    name = f"{type(optimizer).__name__} {len(parameters)} {shapes:x}"
    return training_steps.track(name, nbytes, reduced=reduced, connected=_connected)


def _connected() -> bool:
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


def _all_parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [
        parameter
        for parameter in _all_parameters(optimizer)
        if type(parameter) in _PLAIN and parameter.is_floating_point() and parameter.layout is torch.strided
    ]


def _digest(parameters: list[Tensor]) -> Read:
    device = parameters[0].device
    chosen = [tensor for tensor in parameters if tensor.device == device and tensor.is_contiguous() and tensor.numel()]
    chosen = chosen[:: max(1, len(chosen) // _PARAMETERS)][:_PARAMETERS]
    if not chosen or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return lambda: (0.0, 0.0)
    parts = [tensor.detach().view(-1)[:: max(1, tensor.numel() // _ELEMENTS)][:_ELEMENTS].double() for tensor in chosen]
    elements = torch.cat(parts) * _weights(sum(map(len, parts)), device)
    digest = torch.stack([elements.sum(), elements.abs().sum()])
    if device.type != "cuda":
        value, scale = digest.tolist()
        return lambda: (value, scale)
    host = torch.empty(2, dtype=torch.double, pin_memory=True)
    host.copy_(digest, non_blocking=True)
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return lambda: (float(host[0]), float(host[1])) if event.query() else None


@cache
def _weights(count: int, device: torch.device) -> Tensor:
    """Return weights that make the sum depend on the order of the elements."""
    return torch.arange(count, dtype=torch.double, device=device) % 7 + 1


torch_steps.attach(torch)
