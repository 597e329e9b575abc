"""Gradients on their way: each is reduced in place as soon as autograd has it, while the rest of backward goes on.

Words.
  slot    one parameter that is trained: its name, how many backward passes are still to come, its operation
  passes  gradients are summed locally over that many backward passes, then reduced once
  group   slots whose gradients travel as one operation, when the last of them is ready
  round   from the first backward pass to the end of ``synchronize``
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from hvd_kernel import _session
from hvd_kernel.ops import synchronize
from hvd_kernel.torch.async_ops import allreduce_async_, grouped_allreduce_async_
from hvd_kernel.torch.compression import Compressor

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
_HOOKS: Any = WeakIdKeyDictionary()  # parameter -> its hook: the newest optimizer's alone


@dataclass(frozen=True)
class Plan:
    """How gradients are reduced."""

    op: int
    scales: tuple[float, float]
    compression: type[Compressor]
    sparse_as_dense: bool


@dataclass(eq=False)
class Slot:
    """One parameter."""

    param: Tensor
    name: str
    left: int
    group: Group | None = None
    seen: bool = False  # autograd delivered a gradient in this round
    started: bool = False
    handle: int = -1  # of its own operation; a group has one for all
    wire: Tensor | None = None  # what travels, where it is not the gradient itself
    ctx: Any = None
    made_up: bool = False  # there was no gradient: zeros travel
    was_sparse: bool = False

    def rewind(self, passes: int) -> None:
        """Begin a new round."""
        self.left, self.seen, self.started, self.handle = passes, False, False, -1
        self.wire, self.ctx, self.made_up, self.was_sparse = None, None, False, False


@dataclass(eq=False)
class Group:
    """Slots that travel together."""

    name: str
    slots: list[Slot]
    handle: int = -1


class Reducer:
    """The gradients of one optimizer. Hooks hold it weakly, so that an optimizer that is forgotten is gone."""

    def __init__(self, named: Sequence[tuple[str, Tensor]], plan: Plan, passes: int) -> None:
        self.plan = plan
        self.passes = passes
        self.slots = [Slot(param, name, passes) for name, param in named]
        self.groups: list[Group] = []
        self._generation = _session.generation()

    def group(self, members: Sequence[Sequence[Tensor]]) -> None:
        """Let these parameters travel together."""
        of = {id(slot.param): slot for slot in self.slots}
        for number, params in enumerate(members):
            slots = [of[id(p)] for p in params if id(p) in of]
            if len(slots) > 1:
                group = Group(f"group.{number}.{slots[0].name}", slots)
                self.groups.append(group)
                for slot in slots:
                    slot.group = group

    def hook(self) -> None:
        """Have autograd call for each parameter. A hook of an earlier optimizer on the same parameter goes."""
        reducer = weakref.ref(self)
        for slot in self.slots:
            before = _HOOKS.get(slot.param)
            if before is not None:
                before.remove()
            register: Any = slot.param.register_post_accumulate_grad_hook
            _HOOKS[slot.param] = register(_Hook(reducer, slot))

    def on_gradient(self, slot: Slot) -> None:
        """Count a backward pass; start the operation after the last one. Called in the middle of backward."""
        self.forget_if_renewed()
        if slot.left <= 0:
            raise AssertionError(TOO_MANY_PASSES)
        assert slot.param.grad is not None
        if slot.param.grad.requires_grad:
            raise AssertionError("backward(create_graph=True) is not supported: gradients are reduced in place.")
        slot.seen = True
        slot.left -= 1
        if slot.left == 0:
            self._start(slot)

    def busy(self) -> bool:
        """Tell whether a round has begun."""
        self.forget_if_renewed()
        return any(slot.seen for slot in self.slots)

    def synchronize(self) -> None:
        """End the round: every gradient is reduced, also where this rank's graph had none."""
        self.forget_if_renewed()
        try:
            for slot in self.slots:
                if not slot.started:
                    self._start(slot)
            failure = self._wait()
            if failure is not None:
                raise failure
        finally:
            self.rewind()

    def rewind(self) -> None:
        """Begin a new round, whatever was on its way."""
        for slot in self.slots:
            slot.rewind(self.passes)
        for group in self.groups:
            group.handle = -1

    def forget_if_renewed(self) -> None:
        """Operations of an engine that is gone (a cell failed, the ranks were healed) will never end: drop them."""
        if self._generation != _session.generation():
            self._generation = _session.generation()
            self.rewind()

    def _start(self, slot: Slot) -> None:
        slot.started = True
        tensor = self._travelling(slot)
        if slot.group is None:
            slot.handle = allreduce_async_(tensor, None, slot.name, self.plan.op, *self.plan.scales)
        elif all(member.started for member in slot.group.slots):
            tensors = [_wire(member) for member in slot.group.slots]
            slot.group.handle = grouped_allreduce_async_(
                tensors, None, slot.group.name, self.plan.op, *self.plan.scales
            )

    def _travelling(self, slot: Slot) -> Tensor:
        param = slot.param
        if param.grad is None:
            param.grad, slot.made_up = torch.zeros_like(param), True
        elif param.grad.is_sparse:
            if not self.plan.sparse_as_dense:
                raise ValueError(
                    f"The gradient of {slot.name} is sparse. Use DistributedOptimizer(..., sparse_as_dense=True), "
                    "or a layer with sparse=False."
                )
            param.grad, slot.was_sparse = param.grad.to_dense(), True
        wire, slot.ctx = self.plan.compression.compress(param.grad)
        slot.wire = None if wire is param.grad else wire
        return wire

    def _wait(self) -> BaseException | None:
        """Wait for all, so that nothing still writes into a gradient; return the first failure."""
        failure: BaseException | None = None
        for handle, slots in self._operations():
            try:
                synchronize(handle)
            except (RuntimeError, ValueError) as error:
                failure = failure or error
                continue
            for slot in slots:
                self._settle(slot)
        return failure

    def _operations(self) -> list[tuple[int, list[Slot]]]:
        alone = [(slot.handle, [slot]) for slot in self.slots if slot.group is None]
        return alone + [(group.handle, group.slots) for group in self.groups]

    def _settle(self, slot: Slot) -> None:
        param = slot.param
        assert param.grad is not None
        if slot.wire is not None:
            param.grad.copy_(self.plan.compression.decompress(slot.wire, slot.ctx))
        if slot.was_sparse:
            param.grad = param.grad.to_sparse()
        if slot.made_up and not param.requires_grad:
            param.grad = None  # frozen after the optimizer was made: it must not decay or drift


def _wire(slot: Slot) -> Tensor:
    tensor = slot.param.grad if slot.wire is None else slot.wire
    assert tensor is not None
    return tensor


class _Hook:
    """What autograd calls."""

    __slots__ = ("_reducer", "_slot")

    def __init__(self, reducer: weakref.ref[Reducer], slot: Slot) -> None:
        self._reducer = reducer
        self._slot = weakref.ref(slot)

    def __call__(self, _param: Tensor) -> None:
        reducer, slot = self._reducer(), self._slot()
        if reducer is not None and slot is not None:
            reducer.on_gradient(slot)
