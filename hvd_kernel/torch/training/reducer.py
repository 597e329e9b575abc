"""Gradients on their way: each is reduced in place as soon as autograd has it, while the rest of backward goes on.

When ``backward`` returns, the gradients that it has started are reduced: what the user sees, clips or checks is the
same on every rank. At its end the ranks agree on which gradients any of them has started (``Agreement``), and each
starts those that its own graph did not reach, with zeros. ``synchronize`` starts what is left.

Terms.
  slot     one parameter that is trained: its name, how many backward passes are still to come, its operation
  passes   gradients are summed locally over that many backward passes, then reduced once
  group    slots whose gradients travel as one operation, when the last of them is ready; at the end of backward those
           that are ready travel without the rest
  round    from the first backward pass to the end of ``synchronize``, or to ``zero_grad``
  closing  a rank in ``synchronize`` starts all slots; when any rank does, all do, and no agreement follows in the round
  home     see buckets: a gradient's place in shared memory
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from hvd_kernel.core import handles, session
from hvd_kernel.core.ops import Average, synchronize
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.torch import dispatch
from hvd_kernel.torch.async_ops import sparse_allreduce_async
from hvd_kernel.torch.training import buckets, end_of_backward
from hvd_kernel.torch.training.agreement import Agreement
from hvd_kernel.torch.training.end_of_backward import current_pass
from hvd_kernel.torch.training.slots import (
    UNKNOWN,
    Group,
    Home,
    Homes,
    ReducerSettings,
    Slot,
    move_in,
    nothing_sparse,
    set_places,
    wire,
)

ZERO_GRAD_RACE = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition: gradients are still being reduced."
)
_HOOKS: Any = WeakIdKeyDictionary()  # parameter -> its hook: the newest optimizer's alone
_LOG = logging.getLogger("hvd_kernel")
_numbers = itertools.count()


def too_many_passes(name: str, passes: int) -> str:
    """Return the message for a backward pass whose gradient nothing is waiting for."""
    return (
        "Gradients were computed more than backward_passes_per_step times before call to step(): parameter "
        f"{name!r} got a gradient in more than {passes} backward pass{'es' * (passes > 1)}. Call optimizer.step() or "
        "optimizer.zero_grad() first, or sum the gradients of N passes: "
        "DistributedOptimizer(..., backward_passes_per_step=N)."
    )


def changed_gradients(names: Sequence[str]) -> str:
    """Return the message for gradients that the user wrote to or replaced too early."""
    several = len(names) > 1
    return (
        f"The gradient{'s' * several} of {', '.join(map(repr, names))} {'were' if several else 'was'} changed before "
        "all gradients of this step were reduced, so ranks would get different values. Change gradients after "
        "loss.backward() has returned and, if some are not reduced by then (another backward pass follows), after "
        "optimizer.synchronize(). To change a rank's own gradient, use param.register_hook."
    )


def mixed_kinds(names: Sequence[str]) -> str:
    """Return the message for gradients that are sparse on some ranks only."""
    return (
        f"The gradient of {', '.join(map(repr, names))} is sparse on some ranks and dense on others: "
        "use DistributedOptimizer(..., sparse_as_dense=True)."
    )


class Reducer:
    """The gradients of one optimizer. Hooks hold it weakly, so that an optimizer that is forgotten is gone."""

    def __init__(self, named: Sequence[tuple[str, Tensor]], plan: ReducerSettings, passes: int, homes: Homes) -> None:
        self.plan = plan
        self.passes = passes
        self.slots: list[Slot] = []
        self.groups: list[Group] = []
        self.homes = homes
        self.number = next(_numbers)
        self._hooked = False
        self._frozen: list[Slot] = []  # not trained so far
        self._in_flight: list[tuple[Callable[[], Any], list[Slot]]] = []
        self._unfinished = False  # operations were started since the last agreement
        self._closed = False  # all slots are started, and all ranks know
        self._finished_some = False  # in this round
        self._pass = self._notified = -1  # autograd's numbers of backward passes: checked, and whose end is awaited
        self._begun = False  # a slot was seen or started since the last rewind
        self._misfits = False  # a home does not fit its parameter, on some rank
        self._generation = session.generation()
        self.add(named)

    def add(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Take in parameters, on all ranks alike; those that are frozen when they are trained one day."""
        for name, param in named:
            slot = Slot(param, name, self.passes, frozen=not param.requires_grad, sparse_dims=self._kind_of_new())
            (self.slots if param.requires_grad else self._frozen).append(slot)
            if self._hooked:
                self._hook(slot)

    def _kind_of_new(self) -> int:
        return 0 if self.plan.sparse_as_dense else UNKNOWN

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

    @property
    def name(self) -> str:
        """What ranks match the optimizer by: its first parameter's name."""
        return self.slots[0].name if self.slots else ""

    def hook(self) -> None:
        """Have autograd call for each parameter. A hook of an earlier optimizer on the same parameter goes."""
        self._hooked = True
        for slot in self.slots + self._frozen:
            self._hook(slot)

    def _hook(self, slot: Slot) -> None:
        before = _HOOKS.pop(slot.param, None)
        if before is not None:
            before.remove()
        param = slot.param
        register: Any = param.register_post_accumulate_grad_hook
        if param.requires_grad:
            _HOOKS[param] = register(_Hook(weakref.ref(self), slot))
        elif param.is_floating_point() or param.is_complex():
            with contextlib.suppress(RuntimeError):  # of inference mode: never trained
                param.requires_grad_(True)  # torch hooks tensors that are trained only
                _HOOKS[param] = register(_Hook(weakref.ref(self), slot))
                param.requires_grad_(False)

    def on_gradient(self, slot: Slot) -> None:
        """Count a backward pass; start the operation after the last one. Called in the middle of backward."""
        number = current_pass()
        if number != self._pass:
            self._pass = number
            self._begin_pass(slot)
        if slot.started:
            self._begin_again(slot)
        grad = slot.param.grad
        assert grad is not None
        if grad.requires_grad:
            raise AssertionError("backward(create_graph=True) is not supported: gradients are reduced in place.")
        if slot.frozen:
            self._take_in_unfrozen()
        slot.seen = self._begun = True
        slot.left -= 1
        if slot.left == 0:
            if number != self._notified:
                self._notified = number
                end_of_backward.notify(self)
            self.start(slot)

    def _begin_pass(self, first: Slot) -> None:
        """Begin a new round if the user dropped the gradients of the last one without ``zero_grad`` of the optimizer.

        A step that a GradScaler skipped ends so. All ranks decide alike, whichever gradient comes first: before any
        operation of this backward pass is started.
        """
        self.forget_if_reset()
        if self._finished_some:
            finished = [slot for slot in self.slots if slot.finished and slot.sent is not None and slot is not first]
            if finished and all(slot.is_gone() for slot in finished):
                self._begin_round()

    def _begin_again(self, slot: Slot) -> None:
        """Begin a new round with a slot that was started in this one, if the user dropped its gradient."""
        if not slot.finished or not slot.is_dropped(averages=self.averages()):
            raise AssertionError(too_many_passes(slot.name, self.passes))
        self._begin_round()

    def _begin_round(self) -> None:
        """Forget the operations that are finished; those in flight belong to the new round."""
        for slot in self.slots:
            if slot.finished:
                slot.rewind(self.passes)
        for group in self.groups:
            group.rewind()
        self.homes.arrived.clear()
        self._closed = self._finished_some = False

    def averages(self) -> bool:
        """Tell whether reducing what is the same on all ranks changes nothing."""
        return self.plan.op == Average

    def busy(self) -> bool:
        """Tell whether a round has begun."""
        self.forget_if_reset()
        return any(slot.seen for slot in self.slots)

    def finish_pass(self) -> None:
        """Finish what a backward pass has started, on all ranks: called at its end."""
        self.forget_if_reset()
        if not self._unfinished:
            return
        try:
            self._reduce(closing=False)
        except BaseException:
            self.rewind()
            raise

    def synchronize(self) -> None:
        """End the round: every gradient is reduced, also where this rank's graph had none."""
        self.forget_if_reset()
        try:
            self._take_in_unfrozen()
            self._reduce(closing=True)
            if self._misfits:
                self._leave_homes()
            elif self.homes.wanted and not self.homes.decided:
                self._decide_on_homes()
        finally:
            self.rewind()

    def _reduce(self, *, closing: bool) -> None:
        failure = None if closing and self._closed else self._agree(closing=closing)
        failure = self._wait() or failure
        if failure is not None:
            raise failure

    def drop(self) -> None:
        """End a round whose gradients the user drops.

        Raises
        ------
        AssertionError
            Gradients are being reduced: in the middle of a backward pass, or after one that has failed.
        """
        self.forget_if_reset()
        if self._begun and any(slot.started and not slot.finished for slot in self.slots):
            raise AssertionError(ZERO_GRAD_RACE)
        self.rewind()

    def end_step(self) -> None:
        """End the round after a step that did not synchronize, unless there are gradients of this rank alone."""
        if all(slot.finished or not slot.seen for slot in self.slots):
            self.rewind()

    def abandon(self) -> None:
        """End a round whose sums nobody wants, when nothing is on its way any more: names and memory are free then."""
        self.forget_if_reset()
        for wait, _ in self._in_flight:
            with contextlib.suppress(RuntimeError, ValueError):
                wait()
        self.rewind()

    def set_passes(self, passes: int) -> None:
        """Sum the gradients of this many backward passes from now on; between two rounds."""
        self.passes = passes
        for slot in self.slots + self._frozen:
            slot.left = passes

    def rewind(self) -> None:
        """Begin a new round."""
        if not self._begun:
            return
        for slot in self.slots:
            slot.rewind(self.passes)
        for group in self.groups:
            group.rewind()
        self.homes.arrived.clear()
        self._begun = False
        self._in_flight = []
        self._unfinished = self._closed = self._finished_some = False

    def forget_if_reset(self) -> None:
        """Operations of an engine that is gone (a cell failed, its communicator was reset) never end: drop them."""
        if self._generation != session.generation():
            self._generation = session.generation()
            self._leave_homes()
            # Other ranks, it may be, on other hosts: the optimizer of one that is new knows them alone.
            self.homes.wanted = self.homes.allowed and buckets.are_wanted(self.plan.process_set, self.plan.compression)
            for slot in self.slots:
                slot.sparse_dims = self._kind_of_new()
            self.rewind()

    # One round.

    def start(self, slot: Slot) -> None:
        """Send a gradient on its way."""
        slot.started = self._unfinished = self._begun = True
        if self.homes.wanted and not self.homes.decided:
            self.homes.arrived.append(slot.name)
        sparse_dims = self._sparse_dims(slot)
        if slot.home is not None:
            if slot.home.is_cpu:
                move_in([slot])  # while it is in the cache; on a device all that travel together do
        elif sparse_dims:
            self._start_sparse(slot, sparse_dims)
            return
        else:
            self._make_dense(slot)
        slot.watch()
        group, plan = slot.group, self.plan
        if group is None:
            handle = dispatch.allreduce_(wire(slot), slot.name, plan.op, plan.scales, plan.process_set)
            self._in_flight.append((partial(synchronize, handle), [slot]))
            return
        group.started += 1
        group.waiting.append(slot)
        if group.started == len(group.slots):
            self._send(group)

    def _send(self, group: Group) -> None:
        """Send the slots that wait, as one operation, in the order of the group: it is the same on all ranks."""
        whole = len(group.waiting) == len(group.slots)
        waiting, group.waiting = group.waiting, []
        members = group.slots if whole else sorted(waiting, key=group.slots.index)
        on_device = [slot for slot in members if slot.home is not None and not slot.home.is_cpu]
        for slot in on_device:
            slot.changed = slot.changed or slot.is_changed()
        move_in(on_device)
        for slot in on_device:
            slot.watch()
        name = group.name if whole else f"{group.name}.{group.slots.index(members[0])}+{len(members)}"
        tensors, plan = [wire(slot) for slot in members], self.plan
        if group.bucket and whole and not any(slot.away for slot in members):
            set_places(group)
            finish = dispatch.ordered(lambda _: tensors, tensors)
            name = f"grouped_allreduce.{name}"
            handle = handles.allreduce_places(name, group.places, plan.op, plan.scales, finish)
        else:
            handle = dispatch.grouped_allreduce_(tensors, name, plan.op, plan.scales, plan.process_set)
        self._in_flight.append((partial(synchronize, handle), members))

    def _sparse_dims(self, slot: Slot) -> int:
        """Return the number of sparse dimensions with which a gradient travels; 0: as a dense one."""
        grad = slot.param.grad
        if slot.sparse_dims != UNKNOWN:
            return slot.sparse_dims
        return grad.sparse_dim() if grad is not None and grad.is_sparse else 0

    def _start_sparse(self, slot: Slot, dims: int) -> None:
        """Reduce a gradient as a sparse one; also nothing, where another rank's is sparse."""
        grad = slot.param.grad
        if slot.group is not None:
            raise ValueError(f"The gradient of {slot.name} is sparse and in a group: use sparse_as_dense=True.")
        slot.made_up = grad is None
        if grad is None:
            grad = nothing_sparse(slot.param, dims)
        elif not grad.is_sparse:
            grad = grad.to_sparse(dims)
        slot.watch()
        slot.sparse_sum = sparse_allreduce_async(grad, slot.name, self.plan.op, self.plan.process_set)
        self._in_flight.append((slot.sparse_sum, [slot]))

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
        operations, self._in_flight = self._in_flight, []
        for wait, slots in operations:
            try:
                result = wait()
                for slot in slots:
                    self._finish(slot, result)
            except (RuntimeError, ValueError) as error:
                failure = failure or error
        return failure

    def _finish(self, slot: Slot, result: Any) -> None:
        slot.finished = self._finished_some = True
        if slot.home is not None and slot.home.is_cpu and not (slot.away or slot.was_sparse or slot.made_up):
            return  # reduced where it lies: ``watch`` remembers it already
        param = slot.param
        if slot.sparse_sum is not None:
            param.grad = result
        elif slot.wire is not None and slot.sent is not None:
            slot.sent.copy_(self.plan.compression.decompress(slot.wire, slot.ctx))
        if slot.was_sparse and slot.sent is not None:
            param.grad = slot.sent.to_sparse()
        if slot.made_up and not param.requires_grad:
            param.grad = None  # frozen after the optimizer was made: it must not decay or drift
        slot.wire = slot.ctx = slot.sparse_sum = None
        slot.watch()

    # What all ranks must know alike.

    def _take_in_unfrozen(self) -> None:
        """Reduce from now on what was frozen when the optimizer was made and is trained by now."""
        if any(slot.param.requires_grad for slot in self._frozen):
            for slot in self._frozen:
                slot.frozen = not slot.param.requires_grad
            self.slots += [slot for slot in self._frozen if not slot.frozen]
            self._frozen = [slot for slot in self._frozen if slot.frozen]
            self._closed = False

    def _agree(self, *, closing: bool) -> BaseException | None:
        """Start what any rank has started, or everything if any rank is closing. Collective; return what is wrong."""
        self._take_in_unfrozen()
        if not self.slots:
            return None
        part = self._part(closing=closing)
        part.exchange(self.plan.process_set)
        mixed = part.mixed()
        if mixed:
            self._in_flight = []  # they never end: ranks wait for different operations
            return RuntimeError(mixed_kinds([self.slots[number].name for number in mixed]))
        self._misfits = self._misfits or part.misfits
        for number, slot in enumerate(self.slots):
            if slot.sparse_dims == UNKNOWN and part.is_started(number):
                slot.sparse_dims = part.sparse_dims(number)
            if not slot.started and (part.closing or part.is_started(number)):
                self.start(slot)
        for group in self.groups:
            if group.waiting:
                self._send(group)
        self._unfinished = False
        self._closed = all(slot.started for slot in self.slots)
        changed = part.changed()
        return RuntimeError(changed_gradients([self.slots[number].name for number in changed])) if changed else None

    def _part(self, *, closing: bool) -> Agreement:
        """Return what this rank knows before an agreement."""
        part = Agreement(self.slots)
        part.closing = closing
        part.misfits = any(slot.misfit for slot in self.slots)
        local = closing and any(slot.seen and not slot.started for slot in self.slots)
        dense = [slot.started and slot.sparse_dims == 0 for slot in self.slots]  # usually all of them
        part.start_dense(dense)
        for number, slot in enumerate(self.slots):
            if not dense[number] and (slot.started or (closing and slot.param.grad is not None)):
                part.start(number, self._sparse_dims(slot))
            if slot.started and (slot.changed or ((local or not slot.finished) and slot.is_changed())):
                part.change(number)
        return part

    # Homes.

    def _decide_on_homes(self) -> None:
        """Agree with all ranks on which gradients live in shared memory, and move there from the next round on."""
        able = [slot for slot in self.slots if buckets.may_have_home(slot.param) and not slot.was_sparse]
        devices = buckets.devices_of([slot.param for slot in able])
        of = {(device, slot.name): slot for device, slot in zip(devices, able, strict=True)}
        device_of = {name: device for device, name in of}
        arrived = [(device_of[name], name) for name in dict.fromkeys(self.homes.arrived) if name in device_of]
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
            slot.home, slot.sparse_dims = Home(home), 0
        alone = [slot for slot in slots if slot.group is None]
        for run in buckets.runs([slot.param for slot in alone]):
            members = [alone[i] for i in run]
            self._add(Group(f"bucket.{members[0].name}", members, bucket=True))

    def _leave_homes(self) -> None:
        """Forget the homes, until the ranks have decided on new ones."""
        self.homes.decided = self._misfits = False
        for group in [group for group in self.groups if group.bucket]:
            self.groups.remove(group)
            for slot in group.slots:
                slot.group = None
        for slot in self.slots:
            slot.home, slot.misfit = None, False


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
