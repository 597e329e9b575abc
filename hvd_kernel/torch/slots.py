"""Slots of the reducer: its state of each gradient, and the memory of gradients during a reduction.

Terms: see reducer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core.handles import InOut
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.torch.compression import Compressor
from hvd_kernel.torch.memory import NUMBERS, current_stream, with_device

UNKNOWN = -1


class Phase(IntEnum):
    """Progress of a parameter's gradient in a round."""

    FROZEN = 0
    """The parameter has not been trained so far."""
    IDLE = 1
    """Autograd has delivered no gradient."""
    SEEN = 2
    """Autograd has delivered a gradient whose reduction is not started."""
    STARTED = 3
    REDUCED = 4


class Origin(Enum):
    """Origin of a gradient that is reduced."""

    AUTOGRAD = 0
    SPARSE = 1
    """A sparse gradient of autograd, reduced as a dense tensor."""
    ZEROS = 2
    """No gradient on this rank."""


# Constants, as the access to a member takes half a microsecond in Python 3.11.
FROZEN, IDLE, SEEN, STARTED, REDUCED = Phase
AUTOGRAD, SPARSE, ZEROS = Origin


@dataclass(frozen=True)
class ReducerSettings:
    """Options of the reduction of gradients."""

    op: int
    scales: tuple[float, float]
    compression: type[Compressor]
    sparse_as_dense: bool
    process_set: ProcessSet


class Home:
    """A gradient's place in shared memory, with the attributes that are compared for every gradient."""

    __slots__ = ("_device", "_dtype", "_pointer", "_shape", "_storage", "_stride", "_uses", "is_cpu", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.is_cpu = tensor.is_cpu
        self._dtype, self._shape, self._device = tensor.dtype, tensor.shape, tensor.device
        self._pointer, self._stride = tensor.data_ptr(), tensor.stride()
        self._storage: Any = tensor.untyped_storage()
        self._uses: int = _USE_COUNT(self._storage._cdata)  # noqa: SLF001 - see uses_of

    def contains(self, grad: Tensor) -> bool:
        """Return whether the gradient is in this home."""
        return grad.data_ptr() == self._pointer and grad.stride() == self._stride

    def fits(self, param: Tensor) -> bool:
        """Return whether a gradient of the parameter has the home's type, shape and device."""
        return param.dtype is self._dtype and param.shape == self._shape and param.device == self._device

    def is_held(self) -> bool:
        """Return whether tensors or arrays of the user share this memory."""
        uses: int = _USE_COUNT(self._storage._cdata)  # noqa: SLF001 - see uses_of
        return uses > self._uses


@dataclass(eq=False, slots=True, weakref_slot=True)
class Slot:
    """State of a trained parameter."""

    param: Tensor
    name: str
    left: int  # backward passes before the reduction
    group: Group | None = None
    home: Home | None = None
    sparse_dims: int = UNKNOWN  # of its gradients, once a rank has had one; 0: dense
    phase: Phase = IDLE
    sent: Tensor | None = None  # the gradient that was started, then the reduced one
    version: int = 0  # of ``sent``: counts changes in place
    changed: bool = False  # the user replaced or modified the gradient during the reduction
    wire: Tensor | None = None  # the operand of the reduction, if it is not the gradient itself
    ctx: Any = None
    sparse_sum: Callable[[], Tensor] | None = None
    origin: Origin = AUTOGRAD
    away: bool = False  # the gradient is not in its home in this round
    misfit: bool = False  # the home has another type, shape or device than the parameter

    def reset(self, passes: int) -> None:
        """Start a new round."""
        self.left, self.phase = passes, IDLE
        self.sent, self.version, self.changed = None, 0, False
        self.wire, self.ctx, self.sparse_sum, self.origin, self.away = None, None, None, AUTOGRAD, False

    def watch(self) -> None:
        """Record the gradient and its version, to detect a change by the user.

        Views of a tensor share its version, so that of a part of the user's tensor says nothing about the part.
        """
        sent = self.sent = self.param.grad
        if sent is None or ((self.home is None or self.away) and sent._is_view()):  # noqa: SLF001 - as autograd does
            self.version = UNKNOWN
        else:
            self.version = sent._version  # noqa: SLF001 - as autograd does

    def is_changed(self) -> bool:
        """Return whether the gradient was replaced or modified since ``watch``."""
        sent = self.sent
        if self.param.grad is not sent:
            return True
        return sent is not None and sent._version != self.version != UNKNOWN  # noqa: SLF001 - see watch

    def is_cleared(self) -> bool:
        """Return whether the user set the gradient to None or to zero."""
        grad = self.param.grad
        if grad is None or not self.is_changed():
            return grad is None
        return not bool((grad.coalesce().values() if grad.is_sparse else grad).any())

    def is_fresh(self, *, averages: bool) -> bool:
        """Return whether autograd's gradient is a new one, not a sum with the reduced one; certain if op is Average.

        A sum with a sparse gradient is a new tensor too. A gradient that was modified once, by autograd, was not
        zeroed; one that was modified more often may have been. In both cases the mean over the ranks is correct, as the
        reduced gradient is the same on all ranks.
        """
        grad = self.param.grad
        if grad is None or grad is not self.sent:
            return averages or (grad is not None and not grad.is_sparse)
        return averages and (self.version == UNKNOWN or grad._version > self.version + 1)  # noqa: SLF001 - see watch


@dataclass(eq=False)
class Group:
    """Slots whose gradients are reduced as one operation."""

    name: str
    slots: list[Slot]
    bucket: bool = False  # created by GradientHomes, not by the user
    places: tuple[InOut, ...] = ()  # of a bucket: the places of its homes, the same in every round
    stream: int = 0  # of a bucket on a device: the stream in its places
    started: int = 0
    waiting: list[Slot] = field(default_factory=list)  # started, and not sent yet

    def reset(self) -> None:
        """Start a new round, to which slots belong that are started already."""
        self.started = sum(slot.phase >= STARTED for slot in self.slots)
        self.waiting = [slot for slot in self.waiting if slot.phase >= STARTED]


def move_into_homes(slots: Sequence[Slot]) -> None:
    """Make the homes the gradients; copy gradients that autograd or the user has put elsewhere, in one operation."""
    moves = [move for move in map(_move, slots) if move is not None]
    if len(moves) == 1:
        moves[0][0].copy_(moves[0][1])
    elif moves:
        torch._foreach_copy_([home for home, _ in moves], [grad for _, grad in moves])  # as torch's optimizers do


def _move(slot: Slot) -> tuple[Tensor, Tensor] | None:
    """Make the home the gradient; return the home and the gradient to copy into it, or None if there is none.

    The gradient is not moved if the home no longer fits the parameter, or if the user holds a reference to the memory
    of either: a kept gradient keeps its values, and a part of a larger tensor stays its part.
    """
    param, home = slot.param, slot.home
    assert home is not None
    grad = param.grad
    dense = grad is not None and not grad.is_sparse
    if grad is not None and dense and home.contains(grad):
        return None
    slot.misfit = not home.fits(param)
    slot.away = slot.misfit or home.is_held() or (grad is not None and dense and uses_of(grad) > _USES_ALONE)
    if grad is None:
        slot.origin = ZEROS
        grad = torch.zeros_like(param) if slot.away else home.tensor.zero_()
    elif not dense:
        grad, slot.origin = grad.to_dense(), SPARSE
    param.grad = grad if slot.away else home.tensor.detach()  # a tensor of its own, whose memory the user may replace
    return None if slot.away or grad is home.tensor else (home.tensor, grad)


def uses_of(tensor: Tensor) -> int:
    """Return the number of tensors that use the tensor's memory: views, aliases, arrays."""
    count: int = _USE_COUNT(tensor.untyped_storage()._cdata)  # noqa: SLF001 - as torch's CUDA graphs
    return count


_USE_COUNT: Any = getattr(torch._C, "_storage_Use_Count", None)  # noqa: SLF001 - see uses_of
_USES_ALONE = uses_of(torch.empty(1)) if _USE_COUNT else 0
COUNTS_USES = _USE_COUNT is not None  # not in torch 2.4 without CUDA


def empty_sparse(param: Tensor, dims: int) -> Tensor:
    """Return a sparse gradient of the parameter without rows."""
    indices = torch.empty((dims, 0), dtype=torch.int64, device=param.device)
    rows = param.new_empty((0, *param.shape[dims:])).detach()
    return torch.sparse_coo_tensor(indices, rows, param.shape, check_invariants=False)


def set_places(bucket: Group) -> None:
    """Set the places of a bucket's homes, on a device with its stream; cached, as this takes milliseconds."""
    first = bucket.slots[0].home
    assert first is not None
    stream = 0 if first.is_cpu else current_stream(first.tensor)
    if not bucket.places or stream != bucket.stream:
        bucket.places, bucket.stream = tuple(map(_place, bucket.slots)), stream


def _place(slot: Slot) -> InOut:
    assert slot.home is not None
    home = slot.home.tensor
    pointer = home.data_ptr()
    place = (pointer, pointer, home.shape, NUMBERS[home.dtype])
    return place if home.is_cpu else with_device(place, home)


def wire(slot: Slot) -> Tensor:
    """Return the operand of a slot's reduction."""
    tensor = slot.param.grad if slot.wire is None else slot.wire
    assert tensor is not None
    return tensor
