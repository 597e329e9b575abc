"""The end of a backward pass: finish the gradients that it has started, before ``backward`` returns.

Autograd has a list of callbacks for each pass. A pass within another one (a checkpointed segment with
``use_reentrant=True``) has its own list; reductions continue until the outermost pass ends.

At the end the ranks exchange flags in one small allreduce, whatever their graphs reached (``Agreement``). The number of
agreements in a round is the same on all ranks: ranks with gradients take part at the end of each backward pass, a rank
in ``synchronize`` takes part once and is closing, and after that no rank does in this round.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from hvd_kernel.core.ops import Max
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.torch.mpi_ops import allreduce_
from hvd_kernel.torch.slots import Slot


class _Reducer(Protocol):
    number: int

    @property
    def name(self) -> str:
        """Name by which ranks match it."""

    def finish_pass(self) -> None:
        """Finish the reductions that the pass has started."""


class _Pass:
    """A backward pass, while autograd runs it."""

    def __init__(self) -> None:
        self.reducers: list[_Reducer] = []

    def __call__(self) -> None:
        """Finish the pass in all reducers, in the same order on all ranks."""
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001 - of the outer pass, if any
        if node is None or not _deferred_to_outer(node, self.reducers):
            for reducer in sorted(self.reducers, key=lambda reducer: (reducer.name, reducer.number)):
                reducer.finish_pass()


_passes: weakref.WeakValueDictionary[int, _Pass] = weakref.WeakValueDictionary()  # by autograd's number


current_pass: Callable[[], int] = torch._C._current_graph_task_id  # noqa: SLF001 - as torch's checkpointing
"""Return autograd's number of the backward pass that this thread runs, or -1."""


def schedule(reducer: _Reducer) -> None:
    """Schedule ``finish_pass`` of a reducer at the end of the current backward pass; called by autograd's hooks."""
    number = current_pass()
    current = _passes.get(number)
    if current is None:
        current = _passes[number] = _Pass()
        engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001 - as DistributedDataParallel
        engine.queue_callback(current)
    if reducer not in current.reducers:
        current.reducers.append(reducer)


def _deferred_to_outer(node: Any, reducers: list[_Reducer]) -> bool:
    """Schedule ``finish_pass`` at the end of the outer pass, from its next nodes; return False if there are none."""
    following = [follower for follower, _ in node.next_functions if follower is not None]
    hooks: list[Any] = []

    def resume(_gradients: Any) -> None:
        for hook in hooks:
            hook.remove()
        for reducer in reducers:
            schedule(reducer)

    hooks.extend(follower.register_prehook(resume) for follower in following)
    return bool(following)


_DENSE, _SPARSE, _CHANGED, _ROWS = range(4)  # rows of a flag for each slot
_CLOSING, _MISFIT, _ENDS = range(3)  # flags after them


class Agreement:
    """Flags of all slots: this rank's before ``exchange``, any rank's after it."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._count = len(slots)
        self._name = f"end_of_backward.{slots[0].name}"
        self._flags = bytearray(_ROWS * self._count + _ENDS)

    def start_dense(self, started: Sequence[bool]) -> None:
        """Flag the slots whose gradients are started as dense tensors."""
        self._flags[: self._count] = bytes(started)

    def start(self, number: int, sparse_dims: int) -> None:
        """Flag the gradient of a slot as started, with its number of sparse dimensions."""
        row, flag = (_SPARSE, sparse_dims) if sparse_dims else (_DENSE, 1)
        self._flags[row * self._count + number] = flag

    def change(self, number: int) -> None:
        """Flag a gradient that the user has changed too early."""
        self._flags[_CHANGED * self._count + number] = 1

    @property
    def closing(self) -> bool:
        """Whether all slots are to be started."""
        return bool(self._flags[_CLOSING - _ENDS])

    @closing.setter
    def closing(self, value: bool) -> None:
        self._flags[_CLOSING - _ENDS] = value

    @property
    def misfits(self) -> bool:
        """Whether a home no longer fits its parameter."""
        return bool(self._flags[_MISFIT - _ENDS])

    @misfits.setter
    def misfits(self, value: bool) -> None:
        self._flags[_MISFIT - _ENDS] = value

    def exchange(self, process_set: ProcessSet) -> None:
        """Combine the flags of all ranks. Collective."""
        if process_set.size() != 1:
            flags = torch.frombuffer(self._flags, dtype=torch.uint8)
            allreduce_(flags, name=self._name, op=Max, process_set=process_set)

    def is_started(self, number: int) -> bool:
        """Return whether the gradient of a slot is started."""
        return bool(self._flags[number] or self._flags[_SPARSE * self._count + number])

    def sparse_dims(self, number: int) -> int:
        """Return the number of sparse dimensions of a slot's gradient."""
        return self._flags[_SPARSE * self._count + number]

    def changed(self) -> list[int]:
        """Return the slots whose gradients were changed too early."""
        return self._set(_CHANGED)

    def mixed(self) -> list[int]:
        """Return the slots whose gradients are sparse on some ranks and dense on others."""
        return [number for number in self._set(_SPARSE) if self._flags[number]]

    def _set(self, row: int) -> list[int]:
        flags = self._flags[row * self._count : (row + 1) * self._count]
        return [number for number, flag in enumerate(flags) if flag] if any(flags) else []
