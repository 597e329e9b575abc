"""Reduction of gradients during backward: each is reduced in place as soon as autograd has it.

When ``backward`` returns, the gradients that it has started are reduced: the values that the user reads, clips or
checks are the same on every rank. At its end the ranks agree on which gradients any of them has started
(``Agreement``), and each starts those that its own graph did not reach, with zeros. ``synchronize`` starts the rest.

Terms.
  slot     a trained parameter: its name, the number of backward passes before its reduction, its operation
  passes   the number of backward passes whose gradients are summed locally before they are reduced once
  group    slots whose gradients are reduced as one operation, when the last of them is ready; at the end of backward
           the ready ones are reduced without the others
  round    from the first backward pass to the end of ``synchronize``, or to ``zero_grad``
  closing  a rank in ``synchronize`` starts all slots; if any rank does, all do, and the round has no further agreement
  home     a gradient's place in shared memory, see buckets
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from hvd_kernel.core import handles, session
from hvd_kernel.core.ops import Average, synchronize
from hvd_kernel.torch import async_ops, end_of_backward
from hvd_kernel.torch.async_ops import sparse_allreduce_async
from hvd_kernel.torch.buckets import MISFIT, PENDING, GradientHomes
from hvd_kernel.torch.end_of_backward import Agreement, current_pass
from hvd_kernel.torch.slots import (
    AUTOGRAD,
    FROZEN,
    IDLE,
    REDUCED,
    SEEN,
    SPARSE,
    STARTED,
    UNKNOWN,
    ZEROS,
    Group,
    ReducerSettings,
    Slot,
    empty_sparse,
    move_into_homes,
    set_places,
    wire,
)

ZERO_GRAD_RACE = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition: gradients are still being reduced."
)
_HOOKS: Any = WeakIdKeyDictionary()  # parameter -> the hook of the newest optimizer
_numbers = itertools.count()


def too_many_passes(name: str, passes: int) -> str:
    """Return the message for a gradient of more than ``passes`` backward passes."""
    return (
        "Gradients were computed more than backward_passes_per_step times before call to step(): parameter "
        f"{name!r} got a gradient in more than {passes} backward pass{'es' * (passes > 1)}. Call optimizer.step() or "
        "optimizer.zero_grad() first, or sum the gradients of N passes: "
        "DistributedOptimizer(..., backward_passes_per_step=N)."
    )


def changed_gradients(names: Sequence[str]) -> str:
    """Return the message for gradients that the user modified or replaced before they were reduced."""
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


class Round(Enum):
    """State of a reducer's round, on this rank."""

    NONE = 0
    """No gradient has arrived since the last round."""
    COLLECTING = 1
    """Gradients have arrived, and no operation is started."""
    RUNNING = 2
    """Operations were started since the last agreement."""
    AGREED = 3
    """All ranks have started the same slots, but not all slots."""
    CLOSED = 4
    """All slots are started, on all ranks."""


NONE, COLLECTING, RUNNING, AGREED, CLOSED = Round  # constants: see slots


class Reducer:
    """Reduces the gradients of an optimizer. Hooks refer to it weakly, so that a deleted optimizer is freed."""

    def __init__(
        self, named: Sequence[tuple[str, Tensor]], plan: ReducerSettings, passes: int, homes: GradientHomes
    ) -> None:
        self.plan = plan
        self.passes = passes
        self.slots: list[Slot] = []
        self.groups: list[Group] = []
        self.homes = homes
        self.number = next(_numbers)
        self._hooked = False
        self._frozen: list[Slot] = []  # parameters that have not been trained
        self._in_flight: list[tuple[Callable[[], Any], list[Slot]]] = []
        self._left: list[Callable[[], Any]] = []  # waits for operations of a round that an error or interrupt ended
        self._round = NONE
        self._pass = -1  # autograd's number of the backward pass that _begin_pass has begun
        self._scheduled_pass = -1  # autograd's number of the backward pass whose end calls finish_pass
        self._generation = session.generation()
        self.add(named)

    def add(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Add parameters, on all ranks equally; frozen ones are reduced once they are trained."""
        for name, param in named:
            phase = IDLE if param.requires_grad else FROZEN
            slot = Slot(param, name, self.passes, phase=phase, sparse_dims=self._initial_dims())
            (self._frozen if phase is FROZEN else self.slots).append(slot)
            if self._hooked:
                self._hook(slot)

    def _initial_dims(self) -> int:
        return 0 if self.plan.sparse_as_dense else UNKNOWN

    def group(self, members: Sequence[Sequence[Tensor]]) -> None:
        """Reduce parameters in groups."""
        slot_of = {id(slot.param): slot for slot in self.slots}
        for number, params in enumerate(members):
            slots = [slot_of[id(param)] for param in params if id(param) in slot_of]
            if len(slots) > 1:
                self._add(Group(f"group.{number}.{slots[0].name}", slots))

    def _add(self, group: Group) -> None:
        self.groups.append(group)
        for slot in group.slots:
            slot.group = group

    @property
    def name(self) -> str:
        """Name by which ranks match the optimizer: that of its first parameter."""
        return self.slots[0].name if self.slots else ""

    def hook(self) -> None:
        """Register autograd hooks on the parameters, replacing those of earlier optimizers."""
        self._hooked = True
        for slot in self.slots + self._frozen:
            self._hook(slot)

    def _hook(self, slot: Slot) -> None:
        previous = _HOOKS.pop(slot.param, None)
        if previous is not None:
            previous.remove()
        param = slot.param
        register: Any = param.register_post_accumulate_grad_hook
        if param.requires_grad:
            _HOOKS[param] = register(_Hook(weakref.ref(self), slot))
        elif param.is_floating_point() or param.is_complex():
            with contextlib.suppress(RuntimeError):  # of inference mode: never trained
                param.requires_grad_(True)  # torch registers hooks on trained tensors only
                _HOOKS[param] = register(_Hook(weakref.ref(self), slot))
                param.requires_grad_(False)

    def on_gradient(self, slot: Slot) -> None:
        """Count a backward pass; start the operation after the last one. Called in the middle of backward."""
        number = current_pass()
        if number != self._pass:
            self._pass = number
            self._begin_pass(slot)
        if slot.phase >= STARTED:
            self._begin_again(slot)
        grad = slot.param.grad
        assert grad is not None
        if grad.requires_grad:
            raise AssertionError("backward(create_graph=True) is not supported: gradients are reduced in place.")
        if slot.phase is FROZEN:
            self._add_unfrozen()
        slot.phase = SEEN
        if self._round is NONE:
            self._round = COLLECTING
        slot.left -= 1
        if slot.left == 0:
            if number != self._scheduled_pass:
                self._scheduled_pass = number
                end_of_backward.schedule(self)
            self.start(slot)

    def _begin_pass(self, first: Slot) -> None:
        """Start a new round if the user dropped the gradients of the last one without ``zero_grad`` of the optimizer.

        This happens after a step that a GradScaler skipped. All ranks decide equally, whichever gradient arrives first:
        before any operation of this backward pass is started.
        """
        self.check_generation()
        if self._round is AGREED or self._round is CLOSED:
            others = (slot for slot in self.slots if slot is not first)
            reduced = [slot for slot in others if slot.phase is REDUCED and slot.sent is not None]
            if reduced and all(slot.is_cleared() for slot in reduced):
                self._reset_reduced()

    def _begin_again(self, slot: Slot) -> None:
        """Start a new round with a slot that was started in this round, if the user dropped its gradient."""
        if slot.phase is not REDUCED or not slot.is_fresh(averages=self.averages()):
            raise AssertionError(too_many_passes(slot.name, self.passes))
        self._reset_reduced()

    def _reset_reduced(self) -> None:
        """Start a new round, to which operations in flight belong."""
        for slot in self.slots:
            if slot.phase is REDUCED:
                slot.reset(self.passes)
        for group in self.groups:
            group.reset()
        self.homes.arrived.clear()
        if self._round is not RUNNING:
            self._round = COLLECTING

    def averages(self) -> bool:
        """Return whether a reduction of equal values returns the same values."""
        return self.plan.op == Average

    def busy(self) -> bool:
        """Return whether a round has started."""
        self.check_generation()
        return self._round is not NONE

    def finish_pass(self) -> None:
        """Finish the reductions that a backward pass has started on any rank; called at its end."""
        self.check_generation()
        if self._round is not RUNNING:
            return
        try:
            self._reduce(closing=False)
        except BaseException:
            self.reset()
            raise

    def synchronize(self) -> None:
        """End the round: reduce every gradient, also those that this rank's graph did not reach."""
        self.check_generation()
        try:
            self._add_unfrozen()
            self._reduce(closing=True)
            if self.homes.state is MISFIT:
                self._leave_homes()
            elif self.homes.state is PENDING:
                self.homes.assign(self.slots, self._add)
        finally:
            self.reset()

    def _reduce(self, *, closing: bool) -> None:
        failure = None if closing and self._round is CLOSED else self._agree(closing=closing)
        failure = self._wait() or failure
        if failure is not None:
            raise failure

    def discard(self) -> None:
        """End a round whose gradients the user drops.

        Raises
        ------
        AssertionError
            Gradients are being reduced: in the middle of a backward pass, or after one that has failed.
        """
        self.check_generation()
        if self._round is not NONE and any(slot.phase is STARTED for slot in self.slots):
            raise AssertionError(ZERO_GRAD_RACE)
        self.reset()
        self._finish_left()  # before the gradients are set to zero

    def end_step(self) -> None:
        """End the round after a step that did not synchronize, unless gradients of this rank are not reduced yet."""
        if not any(SEEN <= slot.phase < REDUCED for slot in self.slots):
            self.reset()

    def abandon(self) -> None:
        """End a round without using its results: wait for operations in flight, so that names and memory are free."""
        self.check_generation()
        self.reset()
        self._finish_left()

    def set_passes(self, passes: int) -> None:
        """Set the number of backward passes whose gradients are summed, between two rounds."""
        self.passes = passes
        for slot in self.slots + self._frozen:
            slot.left = passes

    def reset(self) -> None:
        """Start a new round."""
        if self._round is NONE:
            return
        for slot in self.slots:
            slot.reset(self.passes)
        for group in self.groups:
            group.reset()
        self.homes.arrived.clear()
        self._left += [wait for wait, _ in self._in_flight]
        self._in_flight = []
        self._round = NONE

    def check_generation(self) -> None:
        """Forget the operations of an earlier engine, which never complete: a failed cell resets its communicator."""
        if self._generation != session.generation():
            self._generation = session.generation()
            self._leave_homes()
            self.homes.reconsider()  # the ranks, and their hosts, may be others
            for slot in self.slots:
                slot.sparse_dims = self._initial_dims()
            self.reset()
            self._left = []

    def _finish_left(self) -> None:
        """Wait for the operations that an ended round has left, so that their names and memory are free."""
        while self._left:
            with contextlib.suppress(RuntimeError, ValueError):
                self._left[-1]()
            self._left.pop()

    # One round.

    def start(self, slot: Slot) -> None:
        """Start the reduction of a gradient."""
        if self._left:
            self._finish_left()
        slot.phase, self._round = STARTED, RUNNING
        if self.homes.state is PENDING:
            self.homes.arrived.append(slot.name)
        sparse_dims = self._sparse_dims(slot)
        if slot.home is not None:
            if slot.home.is_cpu:
                move_into_homes([slot])  # while it is in the cache; on a device, the whole group at once
        elif sparse_dims:
            self._start_sparse(slot, sparse_dims)
            return
        else:
            self._make_dense(slot)
        slot.watch()
        group, plan = slot.group, self.plan
        if group is None:
            handle = async_ops.allreduce_(wire(slot), slot.name, plan.op, plan.scales, plan.process_set)
            self._in_flight.append((partial(synchronize, handle), [slot]))
            return
        group.started += 1
        group.waiting.append(slot)
        if group.started == len(group.slots):
            self._send(group)

    def _send(self, group: Group) -> None:
        """Start one operation for the waiting slots, in the order of the group, which is the same on all ranks."""
        whole = len(group.waiting) == len(group.slots)
        waiting, group.waiting = group.waiting, []
        members = group.slots if whole else sorted(waiting, key=group.slots.index)
        on_device = [slot for slot in members if slot.home is not None and not slot.home.is_cpu]
        for slot in on_device:
            slot.changed = slot.changed or slot.is_changed()
        move_into_homes(on_device)
        for slot in on_device:
            slot.watch()
        name = group.name if whole else f"{group.name}.{group.slots.index(members[0])}+{len(members)}"
        tensors, plan = [wire(slot) for slot in members], self.plan
        if group.bucket and whole and not any(slot.away for slot in members):
            set_places(group)
            finish = async_ops.ordered(lambda _: tensors, tensors)
            name = f"grouped_allreduce.{name}"
            handle = handles.allreduce_places(name, group.places, plan.op, plan.scales, finish)
        else:
            handle = async_ops.grouped_allreduce_(tensors, name, plan.op, plan.scales, plan.process_set)
        self._in_flight.append((partial(synchronize, handle), members))

    def _sparse_dims(self, slot: Slot) -> int:
        """Return the number of sparse dimensions of a gradient's reduction; 0 if it is reduced as a dense tensor."""
        grad = slot.param.grad
        if slot.sparse_dims != UNKNOWN:
            return slot.sparse_dims
        return grad.sparse_dim() if grad is not None and grad.is_sparse else 0

    def _start_sparse(self, slot: Slot, dims: int) -> None:
        """Start a sparse reduction, with an empty gradient if only other ranks have one."""
        grad = slot.param.grad
        if slot.group is not None:
            raise ValueError(f"The gradient of {slot.name} is sparse and in a group: use sparse_as_dense=True.")
        if grad is None:
            grad, slot.origin = empty_sparse(slot.param, dims), ZEROS
        elif not grad.is_sparse:
            grad = grad.to_sparse(dims)
        slot.watch()
        slot.sparse_sum = sparse_allreduce_async(grad, slot.name, self.plan.op, self.plan.process_set)
        self._in_flight.append((slot.sparse_sum, [slot]))

    def _make_dense(self, slot: Slot) -> None:
        param = slot.param
        if param.grad is None:
            param.grad, slot.origin = torch.zeros_like(param), ZEROS
        elif param.grad.is_sparse:
            param.grad, slot.origin = param.grad.to_dense(), SPARSE
        wire, slot.ctx = self.plan.compression.compress(param.grad)
        slot.wire = None if wire is param.grad else wire

    def _wait(self) -> BaseException | None:
        """Wait for all operations, so that none still writes into a gradient; return the first failure."""
        failure: BaseException | None = None
        while self._in_flight:
            wait, slots = self._in_flight[0]
            try:
                result = wait()
                for slot in slots:
                    self._finish(slot, result)
            except (RuntimeError, ValueError) as error:
                failure = failure or error
            self._in_flight.pop(0)
        return failure

    def _finish(self, slot: Slot, result: Any) -> None:
        slot.phase = REDUCED
        if slot.home is not None and slot.home.is_cpu and not slot.away and slot.origin is AUTOGRAD:
            return  # reduced in place: ``watch`` has recorded the gradient already
        param = slot.param
        if slot.sparse_sum is not None:
            param.grad = result
        elif slot.wire is not None and slot.sent is not None:
            slot.sent.copy_(self.plan.compression.decompress(slot.wire, slot.ctx))
        if slot.origin is SPARSE and slot.sent is not None:
            param.grad = slot.sent.to_sparse()
        if slot.origin is ZEROS and not param.requires_grad:
            param.grad = None  # frozen after the optimizer was created: it must not decay or drift
        slot.wire = slot.ctx = slot.sparse_sum = None
        slot.watch()

    # Agreement of the ranks.

    def _add_unfrozen(self) -> None:
        """Add parameters that were frozen when the optimizer was created, and are trained now."""
        if any(slot.param.requires_grad for slot in self._frozen):
            for slot in self._frozen:
                slot.phase = IDLE if slot.param.requires_grad else FROZEN
            self.slots += [slot for slot in self._frozen if slot.phase is IDLE]
            self._frozen = [slot for slot in self._frozen if slot.phase is FROZEN]
            if self._round is CLOSED:
                self._round = AGREED

    def _agree(self, *, closing: bool) -> BaseException | None:
        """Start the gradients that any rank has started, or all if any rank is closing. Collective.

        Return an error if the gradients of the ranks are sparse and dense, or were changed too early.
        """
        self._add_unfrozen()
        if not self.slots:
            return None
        agreement = self._local_flags(closing=closing)
        agreement.exchange(self.plan.process_set)
        mixed = agreement.mixed()
        if mixed:
            self._in_flight = []  # these never complete: ranks wait for different operations
            return RuntimeError(mixed_kinds([self.slots[number].name for number in mixed]))
        if agreement.misfits:
            self.homes.state = MISFIT
        for number, slot in enumerate(self.slots):
            if slot.sparse_dims == UNKNOWN and agreement.is_started(number):
                slot.sparse_dims = agreement.sparse_dims(number)
            if slot.phase < STARTED and (agreement.closing or agreement.is_started(number)):
                self.start(slot)
        for group in self.groups:
            if group.waiting:
                self._send(group)
        self._round = CLOSED if all(slot.phase >= STARTED for slot in self.slots) else AGREED
        changed = agreement.changed()
        return RuntimeError(changed_gradients([self.slots[number].name for number in changed])) if changed else None

    def _local_flags(self, *, closing: bool) -> Agreement:
        """Return an agreement with the flags of this rank, before the exchange."""
        agreement = Agreement(self.slots)
        agreement.closing = closing
        agreement.misfits = any(slot.misfit for slot in self.slots)
        local = closing and any(slot.phase is SEEN for slot in self.slots)
        dense = [slot.phase >= STARTED and slot.sparse_dims == 0 for slot in self.slots]  # usually all of them
        agreement.start_dense(dense)
        for number, slot in enumerate(self.slots):
            started = slot.phase >= STARTED
            if not dense[number] and (started or (closing and slot.param.grad is not None)):
                agreement.start(number, self._sparse_dims(slot))
            if started and (slot.changed or ((local or slot.phase is STARTED) and slot.is_changed())):
                agreement.change(number)
        return agreement

    def _leave_homes(self) -> None:
        self.groups = [group for group in self.groups if not group.bucket]
        self.homes.leave(self.slots)


class _Hook:
    """Hook that autograd calls for a parameter."""

    __slots__ = ("_reducer", "_slot")

    def __init__(self, reducer: weakref.ref[Reducer], slot: Slot) -> None:
        self._reducer = reducer
        self._slot = weakref.ref(slot)

    def __call__(self, _param: Tensor) -> None:
        reducer, slot = self._reducer(), self._slot()
        if reducer is not None and slot is not None:
            reducer.on_gradient(slot)
