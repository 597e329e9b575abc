"""Slots of the reducer: what it keeps of each gradient, and where a gradient lies while it travels.

Terms: see reducer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hvd_kernel.core.handles import InOut
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.torch import devices
from hvd_kernel.torch.compression import Compressor
from hvd_kernel.torch.staging import NUMBERS

UNKNOWN = -1


@dataclass(frozen=True)
class ReducerSettings:
    """How gradients are reduced."""

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
        """Return whether the gradient lies here."""
        return grad.data_ptr() == self._pointer and grad.stride() == self._stride

    def fits(self, param: Tensor) -> bool:
        """Return whether a gradient of this parameter has the home's type, shape and device."""
        return param.dtype is self._dtype and param.shape == self._shape and param.device == self._device

    def is_held(self) -> bool:
        """Return whether tensors or arrays of the user's use this memory."""
        uses: int = _USE_COUNT(self._storage._cdata)  # noqa: SLF001 - see uses_of
        return uses > self._uses


@dataclass(eq=False, slots=True, weakref_slot=True)
class Slot:
    """One parameter."""

    param: Tensor
    name: str
    left: int
    group: Group | None = None
    home: Home | None = None
    frozen: bool = False  # not trained so far
    sparse_dims: int = UNKNOWN  # of its gradients, once a rank has had one; 0: dense
    seen: bool = False  # autograd delivered a gradient in this round
    started: bool = False
    finished: bool = False  # its gradient is reduced
    sent: Tensor | None = None  # the gradient that was started, then the reduced one
    version: int = 0  # of ``sent``: counts changes in place
    changed: bool = False  # the user replaced or wrote to the gradient while it was being reduced
    wire: Tensor | None = None  # what travels, where it is not the gradient itself
    ctx: Any = None
    sparse_sum: Callable[[], Tensor] | None = None
    made_up: bool = False  # there was no gradient: zeros travel
    was_sparse: bool = False
    away: bool = False  # the gradient is not in its home in this round
    misfit: bool = False  # the home is of another type, shape or device than the parameter

    def rewind(self, passes: int) -> None:
        """Begin a new round."""
        self.left, self.seen, self.started, self.finished = passes, False, False, False
        self.sent, self.version, self.changed = None, 0, False
        self.wire, self.ctx, self.sparse_sum, self.made_up, self.was_sparse = None, None, None, False, False
        self.away = False

    def watch(self) -> None:
        """Remember the gradient as it is, so that a change by the user is noticed.

        Views of one tensor count changes together: what is a part of the user's tensor may change with other parts.
        """
        sent = self.sent = self.param.grad
        if sent is None or ((self.home is None or self.away) and sent._is_view()):  # noqa: SLF001 - as autograd does
            self.version = UNKNOWN
        else:
            self.version = sent._version  # noqa: SLF001 - as autograd does

    def is_changed(self) -> bool:
        """Tell whether the gradient was replaced or written to since ``watch``."""
        sent = self.sent
        if self.param.grad is not sent:
            return True
        return sent is not None and sent._version != self.version != UNKNOWN  # noqa: SLF001 - see watch

    def is_gone(self) -> bool:
        """Tell whether the user dropped the gradient: set it to None or to zero."""
        grad = self.param.grad
        if grad is None or not self.is_changed():
            return grad is None
        return not bool((grad.coalesce().values() if grad.is_sparse else grad).any())

    def is_dropped(self, *, averages: bool) -> bool:
        """Tell whether autograd's gradient is a new one, not the sum with the reduced one; certain if it averages.

        A sum with a sparse gradient is a new tensor too. What was written to once, by autograd, was not zeroed; what
        was written to more often may have been. Either way the mean over ranks is right: the reduced one is the same.
        """
        grad = self.param.grad
        if grad is None or grad is not self.sent:
            return averages or (grad is not None and not grad.is_sparse)
        return averages and (self.version == UNKNOWN or grad._version > self.version + 1)  # noqa: SLF001 - see watch


@dataclass(eq=False)
class Group:
    """Slots that travel together."""

    name: str
    slots: list[Slot]
    bucket: bool = False  # ours, not the user's
    places: tuple[InOut, ...] = ()  # of a bucket: their homes, the same in every round
    stream: int = 0  # of a bucket on a device: the one that its places name
    started: int = 0
    waiting: list[Slot] = field(default_factory=list)  # started, and not sent yet

    def rewind(self) -> None:
        """Begin a new round, in which only slots that are started already take part."""
        self.started = sum(slot.started for slot in self.slots)
        self.waiting = [slot for slot in self.waiting if slot.started]


@dataclass
class Homes:
    """Whether gradients get homes: decided by all ranks after their first round, once for as long as the ranks stay."""

    wanted: bool  # as far as this rank can tell, and all others tell alike
    allowed: bool = False  # the user has nothing against them
    insisted: bool = False  # the user asked for them: say so when there are none
    decided: bool = False
    arrived: list[str] = field(default_factory=list)  # in the order of this rank's first backward


def move_in(slots: Sequence[Slot]) -> None:
    """Let the gradients be their homes; what autograd or the user has put elsewhere is copied, all of it at once."""
    moves = [move for move in map(_moved, slots) if move is not None]
    if len(moves) == 1:
        moves[0][0].copy_(moves[0][1])
    elif moves:
        torch._foreach_copy_([home for home, _ in moves], [grad for _, grad in moves])  # as torch's optimizers do


def _moved(slot: Slot) -> tuple[Tensor, Tensor] | None:
    """Make the home the gradient; return it and what is to be copied there, if anything is.

    The gradient stays where it is if the home does not fit the parameter any more, or if the user holds the memory of
    either: a gradient that was kept keeps its values, and one that is part of a larger tensor stays its part.
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
        slot.made_up = True
        grad = torch.zeros_like(param) if slot.away else home.tensor.zero_()
    elif not dense:
        grad, slot.was_sparse = grad.to_dense(), True
    param.grad = grad if slot.away else home.tensor.detach()  # its own tensor: the user may give it other memory
    return None if slot.away or grad is home.tensor else (home.tensor, grad)


def uses_of(tensor: Tensor) -> int:
    """Return how many tensors use this one's memory: views, aliases, arrays."""
    count: int = _USE_COUNT(tensor.untyped_storage()._cdata)  # noqa: SLF001 - as torch's CUDA graphs
    return count


_USE_COUNT: Any = getattr(torch._C, "_storage_Use_Count", None)  # noqa: SLF001 - see uses_of
_USES_ALONE = uses_of(torch.empty(1)) if _USE_COUNT else 0
COUNTS_USES = _USE_COUNT is not None  # not in torch 2.4 without CUDA


def nothing_sparse(param: Tensor, dims: int) -> Tensor:
    """Return a sparse gradient of this parameter without a single row."""
    where = torch.empty((dims, 0), dtype=torch.int64, device=param.device)
    rows = param.new_empty((0, *param.shape[dims:])).detach()
    return torch.sparse_coo_tensor(where, rows, param.shape, check_invariants=False)


def set_places(bucket: Group) -> None:
    """Say where the homes of a bucket lie, and on a device behind which stream; kept, as it takes milliseconds."""
    first = bucket.slots[0].home
    assert first is not None
    stream = 0 if first.is_cpu else devices.current_stream(first.tensor)
    if not bucket.places or stream != bucket.stream:
        bucket.places, bucket.stream = tuple(map(_place, bucket.slots)), stream


def _place(slot: Slot) -> InOut:
    assert slot.home is not None
    home = slot.home.tensor
    pointer = home.data_ptr()
    place = (pointer, pointer, home.shape, NUMBERS[home.dtype])
    return place if home.is_cpu else devices.with_device(place, home)


def wire(slot: Slot) -> Tensor:
    """Return what travels."""
    tensor = slot.param.grad if slot.wire is None else slot.wire
    assert tensor is not None
    return tensor
