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


@dataclass(frozen=True)
class ReducerSettings:
    """How gradients are reduced."""

    op: int
    scales: tuple[float, float]
    compression: type[Compressor]
    sparse_as_dense: bool
    process_set: ProcessSet


@dataclass(eq=False)
class Slot:
    """One parameter."""

    param: Tensor
    name: str
    left: int
    group: Group | None = None
    home: Tensor | None = None
    sparse_dims: int = 0  # of its gradients, where they are sparse on some rank
    seen: bool = False  # autograd delivered a gradient in this round
    started: bool = False
    handle: int = -1  # of its own operation; a group has one for all
    wire: Tensor | None = None  # what travels, where it is not the gradient itself
    ctx: Any = None
    sparse_sum: Callable[[], Tensor] | None = None
    made_up: bool = False  # there was no gradient: zeros travel
    was_sparse: bool = False

    def rewind(self, passes: int) -> None:
        """Begin a new round."""
        self.left, self.seen, self.started, self.handle = passes, False, False, -1
        self.wire, self.ctx, self.sparse_sum, self.made_up, self.was_sparse = None, None, None, False, False


@dataclass(eq=False)
class Group:
    """Slots that travel together."""

    name: str
    slots: list[Slot]
    bucket: bool = False  # ours, not the user's
    places: tuple[InOut, ...] = ()  # of a bucket: their homes, the same in every round
    stream: int = 0  # of a bucket on a device: the one that its places name
    handle: int = -1
    started: int = 0

    def rewind(self) -> None:
        """Begin a new round."""
        self.handle, self.started = -1, 0


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
    """Make the home the gradient; return it and what is to be copied there, if anything is."""
    param, home = slot.param, slot.home
    assert home is not None
    grad = param.grad
    if grad is not None and not grad.is_sparse and _is_at_home(grad, home):
        return None
    slot.made_up = grad is None
    if grad is None:
        home.zero_()
    elif grad.is_sparse:
        grad, slot.was_sparse = grad.to_dense(), True
    param.grad = home.detach()  # a tensor of its own: the user may give it other memory
    return None if grad is None else (home, grad)


def _is_at_home(grad: Tensor, home: Tensor) -> bool:
    return grad.data_ptr() == home.data_ptr() and grad.stride() == home.stride()


def nothing_sparse(param: Tensor, dims: int) -> Tensor:
    """Return a sparse gradient of this parameter without a single row."""
    where = torch.empty((dims, 0), dtype=torch.int64, device=param.device)
    rows = param.new_empty((0, *param.shape[dims:])).detach()
    return torch.sparse_coo_tensor(where, rows, param.shape, check_invariants=False)


def set_places(bucket: Group) -> None:
    """Say where the homes of a bucket lie, and on a device behind which stream; kept, as it takes milliseconds."""
    first = bucket.slots[0].home
    assert first is not None
    stream = 0 if first.is_cpu else devices.current_stream(first)
    if not bucket.places or stream != bucket.stream:
        bucket.places, bucket.stream = tuple(map(_place, bucket.slots)), stream


def _place(slot: Slot) -> InOut:
    home = slot.home
    assert home is not None
    pointer = home.data_ptr()
    place = (pointer, pointer, home.shape, NUMBERS[home.dtype])
    return place if home.is_cpu else devices.with_device(place, home)


def wire(slot: Slot) -> Tensor:
    """Return what travels."""
    tensor = slot.param.grad if slot.wire is None else slot.wire
    assert tensor is not None
    return tensor
