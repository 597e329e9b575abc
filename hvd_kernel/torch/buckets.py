"""Gradients in shared memory, of the host or of its GPUs: reduced in place, without a copy.

Terms.
  device  the location of a gradient: the host, or one of this rank's devices, numbered in order of appearance
  home    a gradient's place in shared memory, as a tensor of its own; ``param.grad`` is this tensor in every round
  bucket  consecutive homes that are reduced as one operation of separate tensors: the bucket of a gradient does not
          change its result by a bit
  layout  the names of the gradients that have homes, in the order of rank 0's first backward
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from hvd_kernel.core import ops, session, shared_memory
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.torch.compression import Compressor, NoneCompressor
from hvd_kernel.torch.memory import is_supported, parts_of
from hvd_kernel.torch.slots import COUNTS_USES, SPARSE, Group, Home, Slot


class HomesState(Enum):
    """Progress of the ranks' decision on homes, the same on all ranks."""

    OFF = 0
    """Homes are not useful for these ranks."""
    PENDING = 1
    """The ranks decide at the end of the round."""
    ASSIGNED = 2
    MISFIT = 3
    """A home does not fit its parameter, on some rank."""


OFF, PENDING, ASSIGNED, MISFIT = HomesState  # constants: see slots

BUCKET_BYTES = 25 << 20
_ALIGN = 64  # a cache line, so that no line contains two gradients
COMPRESSED = "compressed gradients are sent as copies"
_LOG = logging.getLogger("hvd_kernel")


def shared_empty(shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor in memory that the ranks of a host reduce in place, without a copy. Collective over all ranks.

    Each rank gets its own memory, which is freed with the last reference to it (see ``release_shared``).

    Parameters
    ----------
    shape
        Shape of the tensor, the same on every rank.
    dtype
        Type of its elements.

    Returns
    -------
    Tensor
        A tensor on the CPU; its elements are not set.

    Raises
    ------
    ValueError
        Horovod is not initialized.
    HorovodInternalError
        On every rank: a rank has no shared memory, or too little.

    Examples
    --------
    >>> gradients = hvd.shared_empty((2, 3)).fill_(1.0)
    >>> hvd.allreduce_(gradients, op=hvd.Max)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    memory = shared_memory.allocate(math.prod(extents) * dtype.itemsize)
    return _tensor(memory, extents, dtype)


def obstacle(process_set: ProcessSet, compression: type[Compressor]) -> str:
    """Return the reason why gradients cannot be in shared memory, or an empty string; equal on all ranks."""
    if process_set.size() != session.size():
        return "the process set is not all ranks"
    if session.local_size() != session.size():
        return "the ranks are on several hosts"
    if compression is not NoneCompressor:
        return COMPRESSED
    if not COUNTS_USES:
        return f"torch {torch.__version__} does not count what uses a tensor's memory"
    return ""


class GradientHomes:
    """Decides which gradients of an optimizer have homes, and assigns them.

    All ranks decide together after their first round, once as long as the ranks stay the same.

    Parameters
    ----------
    requested
        None: use homes if it is possible. True: insist. False: do not use homes.

    Raises
    ------
    ValueError
        Homes are requested and not possible; the message has the reason.
    """

    def __init__(self, process_set: ProcessSet, compression: type[Compressor], requested: bool | None) -> None:
        reason = obstacle(process_set, compression) if requested else ""
        if reason:
            raise ValueError(f"gradients_in_buckets=True is not possible: {reason}.")
        self._process_set = process_set
        self._compression = compression
        self._requested = requested  # True: warn if there is no shared memory
        self.state = OFF
        self.arrived: list[str] = []  # names of started gradients, in this rank's order, while pending
        self.reconsider()

    def reconsider(self) -> None:
        """Determine whether homes are useful for the current ranks."""
        allowed = self._requested is not False and session.size() > 1
        self.state = PENDING if allowed and not obstacle(self._process_set, self._compression) else OFF

    def assign(self, slots: Sequence[Slot], add_bucket: Callable[[Group], None]) -> None:
        """Agree with all ranks on which gradients have homes, and use these from the next round on. Collective."""
        suitable = [slot for slot in slots if _may_have_home(slot.param) and slot.origin is not SPARSE]
        locations = _locations([slot.param for slot in suitable])
        slot_of = {(device, slot.name): slot for device, slot in zip(locations, suitable, strict=True)}
        device_of = {name: device for device, name in slot_of}
        arrived = [(device_of[name], name) for name in dict.fromkeys(self.arrived) if name in device_of]
        try:
            layout = _agree(arrived)
        except HorovodInternalError as error:  # a rank has joined: try again in the next round
            _LOG.debug("gradients are not in shared memory yet: %s", error)
            return
        self.state = ASSIGNED
        for device in dict.fromkeys(device for device, _ in layout):
            self._assign_on_device([slot_of[key] for key in layout if key[0] == device], add_bucket)

    def _assign_on_device(self, slots: list[Slot], add_bucket: Callable[[Group], None]) -> None:
        try:
            homes = _homes_for([slot.param for slot in slots])
        except HorovodInternalError as error:
            _LOG.debug("gradients are not in shared memory: %s", error)
            if self._requested:
                warnings.warn(f"Gradients are not in shared memory: {error}", stacklevel=2)
            return
        for slot, home in zip(slots, homes, strict=True):
            slot.home, slot.sparse_dims = Home(home), 0
        ungrouped = [slot for slot in slots if slot.group is None]
        for run in _runs([slot.param for slot in ungrouped]):
            members = [ungrouped[i] for i in run]
            add_bucket(Group(f"bucket.{members[0].name}", members, bucket=True))

    def leave(self, slots: Sequence[Slot]) -> None:
        """Forget homes and buckets, until the ranks have decided on new ones."""
        if self.state is not OFF:
            self.state = PENDING
        for slot in slots:
            if slot.group is not None and slot.group.bucket:
                slot.group = None
            slot.home, slot.misfit = None, False


def _may_have_home(param: Tensor) -> bool:
    """Return whether the parameter's gradient can be in shared memory."""
    grad = param.grad
    return (
        param.requires_grad
        and (param.is_cpu or (session.size() > 1 and is_supported(param)))
        and param.is_contiguous()
        and param.dtype.is_floating_point
        and param.numel() > 0
        and grad is not None
        and grad.layout is torch.strided
        and grad.dtype == param.dtype
    )


def _locations(params: Sequence[Tensor]) -> list[str]:
    """Return the location of each parameter, by names that are the same on all ranks."""
    seen: dict[torch.device, str] = {}
    return ["host" if param.is_cpu else seen.setdefault(param.device, f"device {len(seen)}") for param in params]


def _agree(arrived: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the layout: those of rank 0's pairs of device and name that every rank has. Collective."""
    names: list[tuple[str, str]] = ops.broadcast_object(list(arrived), 0, "gradients.layout")
    if not names:
        return []
    local = set(arrived)
    is_common = ops.allreduce(np.array([name in local for name in names], np.uint8), "gradients.common", ops.Min)
    return [name for name, common in zip(names, is_common, strict=True) if common]


def _homes_for(params: Sequence[Tensor]) -> list[Tensor]:
    """Allocate a home for each gradient, all on one device. Collective, with the same sizes in the same order."""
    ends = np.cumsum([_room(param) for param in params]).tolist()
    starts = [0, *ends[:-1]]
    if not params[0].is_cpu:
        return parts_of(shared_memory.allocate_on_devices(ends[-1], params[0].get_device()), starts, params)
    memory = shared_memory.allocate(ends[-1])
    return [
        _tensor(memory[start : start + param.nbytes], tuple(param.shape), param.dtype)
        for start, param in zip(starts, params, strict=True)
    ]


def _runs(params: Sequence[Tensor]) -> list[range]:
    """Return the buckets: consecutive parameters of a type, of at most BUCKET_BYTES, or a single larger parameter."""
    buckets: list[range] = []
    begin, filled = 0, 0
    for number, param in enumerate(params):
        full = filled + param.nbytes > BUCKET_BYTES or param.dtype != params[begin].dtype
        if full and number > begin:
            buckets.append(range(begin, number))
            begin, filled = number, 0
        filled += param.nbytes
    return [*buckets, range(begin, len(params))] if params else []


def _room(param: Tensor) -> int:
    return -(-param.nbytes // _ALIGN) * _ALIGN


def _tensor(memory: memoryview, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return memory as a tensor with a storage of its own, so that saving it does not save other memory."""
    if not len(memory):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
