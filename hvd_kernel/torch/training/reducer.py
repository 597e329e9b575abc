"""Gradients on their way: each is reduced in place as soon as autograd has it, while the rest of backward goes on.

Terms.
  slot    one parameter that is trained: its name, how many backward passes are still to come, its operation
  passes  gradients are summed locally over that many backward passes, then reduced once
  group   slots whose gradients travel as one operation, when the last of them is ready
  round   from the first backward pass to the end of ``synchronize``
  home    see buckets: a gradient's place in shared memory
"""

from __future__ import annotations

import contextlib
import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from hvd_kernel.core import handles, ops, session
from hvd_kernel.core.ops import synchronize
from hvd_kernel.errors import HorovodInternalError, Mismatch
from hvd_kernel.torch import dispatch
from hvd_kernel.torch.async_ops import sparse_allreduce_async
from hvd_kernel.torch.training import buckets
from hvd_kernel.torch.training.slots import (
    Group,
    Homes,
    ReducerSettings,
    Slot,
    move_in,
    nothing_sparse,
    set_places,
    wire,
)

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
_HOOKS: Any = WeakIdKeyDictionary()  # parameter -> its hook: the newest optimizer's alone
_LOG = logging.getLogger("hvd_kernel")


class Reducer:
    """The gradients of one optimizer. Hooks hold it weakly, so that an optimizer that is forgotten is gone."""

    def __init__(self, named: Sequence[tuple[str, Tensor]], plan: ReducerSettings, passes: int, homes: Homes) -> None:
        self.plan = plan
        self.passes = passes
        self.slots: list[Slot] = []
        self.groups: list[Group] = []
        self.homes = homes
        self._hooked = False
        self._frozen: list[tuple[str, Tensor]] = []  # not trained so far
        self._kinds_agreed = False  # all ranks know which gradients travel as sparse ones
        self._generation = session.generation()
        self.add(named)

    def add(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Take in parameters, on all ranks alike; those that are frozen when they are trained one day."""
        self._kinds_agreed = self.plan.sparse_as_dense
        for name, param in named:
            if param.requires_grad:
                self.slots.append(Slot(param, name, self.passes))
                if self._hooked:
                    self._hook(self.slots[-1])
            else:
                self._frozen.append((name, param))

    def group(self, members: Sequence[Sequence[Tensor]]) -> None:
        """Let these parameters travel together."""
        of = {id(slot.param): slot for slot in self.slots}
        for number, params in enumerate(members):
            slots = [of[id(p)] for p in params if id(p) in of]
            if len(slots) > 1:
                self._add(Group(f"group.{number}.{slots[0].name}", slots))

    def _add(self, group: Group) -> None:
        self.groups.append(group)
        for slot in group.slots:
            slot.group = group

    def hook(self) -> None:
        """Have autograd call for each parameter. A hook of an earlier optimizer on the same parameter goes."""
        self._hooked = True
        for slot in self.slots:
            self._hook(slot)

    def _hook(self, slot: Slot) -> None:
        before = _HOOKS.get(slot.param)
        if before is not None:
            before.remove()
        register: Any = slot.param.register_post_accumulate_grad_hook
        _HOOKS[slot.param] = register(_Hook(weakref.ref(self), slot))

    def on_gradient(self, slot: Slot) -> None:
        """Count a backward pass; start the operation after the last one. Called in the middle of backward."""
        self.forget_if_reset()
        if slot.left <= 0:
            raise AssertionError(TOO_MANY_PASSES)
        assert slot.param.grad is not None
        if slot.param.grad.requires_grad:
            raise AssertionError("backward(create_graph=True) is not supported: gradients are reduced in place.")
        slot.seen = True
        slot.left -= 1
        if slot.left == 0:
            self.start(slot)

    def busy(self) -> bool:
        """Tell whether a round has begun."""
        self.forget_if_reset()
        return any(slot.seen for slot in self.slots)

    def synchronize(self) -> None:
        """End the round: every gradient is reduced, also where this rank's graph had none."""
        self.forget_if_reset()
        try:
            self._take_in_unfrozen()
            if not self._kinds_agreed:
                self._agree_on_kinds()
            for slot in self.slots:
                if not slot.started:
                    self.start(slot)
            failure = self._wait()
            if failure is not None:
                raise failure
            if self.homes.wanted and not self.homes.decided:
                self._decide_on_homes()
        finally:
            self.rewind()

    def abandon(self) -> None:
        """End a round whose sums nobody wants, when nothing is on its way any more: names and memory are free then."""
        self.forget_if_reset()
        waits: list[Callable[[], Any]] = [partial(synchronize, handle) for handle, _ in self._operations()]
        for wait in waits + [slot.sparse_sum for slot in self.slots if slot.sparse_sum]:
            with contextlib.suppress(RuntimeError, ValueError):
                wait()
        self.rewind()

    def rewind(self) -> None:
        """Begin a new round."""
        for slot in self.slots:
            slot.rewind(self.passes)
        for group in self.groups:
            group.rewind()
        self.homes.arrived.clear()

    def forget_if_reset(self) -> None:
        """Operations of an engine that is gone (a cell failed, its communicator was reset) never end: drop them."""
        if self._generation != session.generation():
            self._generation = session.generation()
            self._leave_homes()
            # Other ranks, it may be, on other hosts: the optimizer of one that is new knows them alone.
            self.homes.wanted = self.homes.allowed and buckets.are_wanted(self.plan.process_set, self.plan.compression)
            self._kinds_agreed = self.plan.sparse_as_dense
            self.rewind()

    # One round.

    def start(self, slot: Slot) -> None:
        """Send a gradient on its way."""
        slot.started = True
        if self.homes.wanted and not self.homes.decided:
            self.homes.arrived.append(slot.name)
        if slot.home is not None:
            if slot.home.is_cpu:
                move_in([slot])  # while it is in the cache; on a device all that travel together do
        elif self._starts_sparse(slot):
            return
        else:
            self._make_dense(slot)
        group, plan = slot.group, self.plan
        if group is None:
            slot.handle = dispatch.allreduce_(wire(slot), slot.name, plan.op, plan.scales, plan.process_set)
            return
        group.started += 1
        if group.started == len(group.slots):
            group.handle = self._start_group(group)

    def _start_group(self, group: Group) -> int:
        plan = self.plan
        move_in([member for member in group.slots if member.home is not None and not member.home.is_cpu])
        tensors = [wire(member) for member in group.slots]
        if not group.bucket:
            return dispatch.grouped_allreduce_(tensors, group.name, plan.op, plan.scales, plan.process_set)
        set_places(group)
        finish = dispatch.ordered(lambda _: tensors, tensors)
        return handles.allreduce_places(f"grouped_allreduce.{group.name}", group.places, plan.op, plan.scales, finish)

    def _starts_sparse(self, slot: Slot) -> bool:
        """Reduce a sparse gradient as a sparse one; also nothing, where another rank's is sparse."""
        grad = slot.param.grad
        if not self._is_sparse(slot):
            return False
        if slot.group is not None:
            raise ValueError(f"The gradient of {slot.name} is sparse and in a group: use sparse_as_dense=True.")
        slot.made_up = grad is None
        if grad is None:
            grad = nothing_sparse(slot.param, slot.sparse_dims)
        elif not grad.is_sparse:
            grad = grad.to_sparse(slot.sparse_dims)
        slot.sparse_dims = grad.sparse_dim()
        slot.sparse_sum = sparse_allreduce_async(grad, slot.name, self.plan.op, self.plan.process_set)
        return True

    def _is_sparse(self, slot: Slot) -> bool:
        grad = slot.param.grad
        return slot.sparse_dims > 0 or (not self._kinds_agreed and grad is not None and grad.is_sparse)

    def _make_dense(self, slot: Slot) -> None:
        param = slot.param
        if param.grad is None:
            param.grad, slot.made_up = torch.zeros_like(param), True
        elif param.grad.is_sparse:
            param.grad, slot.was_sparse = param.grad.to_dense(), True
        wire, slot.ctx = self.plan.compression.compress(param.grad)
        slot.wire = None if wire is param.grad else wire

    def _wait(self) -> BaseException | None:
        """Wait for all, so that nothing still writes into a gradient; return the first failure."""
        failure: BaseException | None = None
        for handle, slots in self._operations():
            try:
                synchronize(handle)
                for slot in slots:
                    self._settle(slot)
            except (RuntimeError, ValueError) as error:
                failure = failure or error
        return failure

    def _operations(self) -> list[tuple[int, list[Slot]]]:
        alone = [(slot.handle, [slot]) for slot in self.slots if slot.group is None]
        return alone + [(group.handle, group.slots) for group in self.groups]

    def _settle(self, slot: Slot) -> None:
        param = slot.param
        if slot.sparse_sum is not None:
            param.grad = slot.sparse_sum()
        assert param.grad is not None
        if slot.wire is not None:
            param.grad.copy_(self.plan.compression.decompress(slot.wire, slot.ctx))
        if slot.was_sparse:
            param.grad = param.grad.to_sparse()
        if slot.made_up and not param.requires_grad:
            param.grad = None  # frozen after the optimizer was made: it must not decay or drift

    # What all ranks must know alike.

    def _take_in_unfrozen(self) -> None:
        """Reduce from now on what was frozen when the optimizer was made and is trained by now."""
        if any(param.requires_grad for _, param in self._frozen):
            known, self._frozen = self._frozen, []
            self.add(known)

    def _agree_on_kinds(self) -> None:
        """Learn which gradients are sparse on some rank: where a graph does not reach one, no rows must travel."""
        mine = {slot.name: slot.sparse_dims for slot in self.slots if slot.sparse_dims}
        for slot in self.slots:
            if not slot.started and slot.param.grad is not None and slot.param.grad.is_sparse:
                mine[slot.name] = slot.param.grad.sparse_dim()
        try:
            everyone = ops.allgather_object(mine, "gradients.kinds", self.plan.process_set)
        except Mismatch as error:  # a rank has joined: ask again in the next round
            _LOG.debug("sparse gradients are not agreed on yet: %s", error)
            return
        self._kinds_agreed = True
        for slot in self.slots:
            slot.sparse_dims = max(kinds.get(slot.name, 0) for kinds in everyone)

    # Homes.

    def _decide_on_homes(self) -> None:
        """Agree with all ranks on which gradients live in shared memory, and move there from the next round on."""
        able = [slot for slot in self.slots if buckets.may_have_home(slot.param) and not slot.was_sparse]
        devices = buckets.devices_of([slot.param for slot in able])
        of = {(device, slot.name): slot for device, slot in zip(devices, able, strict=True)}
        device_of = {name: device for device, name in of}
        arrived = [(device_of[name], name) for name in self.homes.arrived if name in device_of]
        try:
            layout = buckets.agree(arrived)
        except HorovodInternalError as error:  # a rank has joined: try again in the next round
            _LOG.debug("gradients are not in shared memory yet: %s", error)
            return
        self.homes.decided = True
        for device in dict.fromkeys(device for device, _ in layout):
            self._move_to_shared_memory([of[key] for key in layout if key[0] == device])

    def _move_to_shared_memory(self, slots: list[Slot]) -> None:
        """Give the gradients on one device their homes."""
        try:
            homes = buckets.homes_for([slot.param for slot in slots])
        except HorovodInternalError as error:
            _LOG.debug("gradients are not in shared memory: %s", error)
            if self.homes.insisted:
                warnings.warn(f"Gradients are not in shared memory: {error}", stacklevel=2)
            return
        for slot, home in zip(slots, homes, strict=True):
            slot.home = home
        alone = [slot for slot in slots if slot.group is None]
        for run in buckets.runs([slot.param for slot in alone]):
            members = [alone[i] for i in run]
            self._add(Group(f"bucket.{members[0].name}", members, bucket=True))

    def _leave_homes(self) -> None:
        self.homes.decided = False
        for group in [group for group in self.groups if group.bucket]:
            self.groups.remove(group)
            for slot in group.slots:
                slot.group = None
        for slot in self.slots:
            slot.home = None


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
