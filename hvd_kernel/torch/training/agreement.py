"""What ranks tell each other at the end of a backward pass: one small allreduce, whatever their graphs reached.

The number of agreements between two rounds is the same on all ranks: ranks with gradients take part at the end of each
backward pass, a rank in ``synchronize`` takes part once and is closing, and after that no rank does in this round.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_kernel.core.ops import Max
from hvd_kernel.core.process_sets import ProcessSet
from hvd_kernel.torch.mpi_ops import allreduce_
from hvd_kernel.torch.training.slots import Slot

_DENSE, _SPARSE, _CHANGED, _ROWS = range(4)  # rows of a flag for each slot
_CLOSING, _MISFIT, _ENDS = range(3)  # flags after them


class Agreement:
    """Flags of all slots: this rank's before ``exchange``, any rank's after it."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._count = len(slots)
        self._name = f"end_of_backward.{slots[0].name}"
        self._flags = bytearray(_ROWS * self._count + _ENDS)

    def start_dense(self, started: Sequence[bool]) -> None:
        """Note which slots' gradients are started as dense ones."""
        self._flags[: self._count] = bytes(started)

    def start(self, number: int, sparse_dims: int) -> None:
        """Note that the gradient of a slot is started, with this number of sparse dimensions."""
        row, flag = (_SPARSE, sparse_dims) if sparse_dims else (_DENSE, 1)
        self._flags[row * self._count + number] = flag

    def change(self, number: int) -> None:
        """Note that the user has changed a gradient too early."""
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
        """Whether a home does not fit its parameter any more."""
        return bool(self._flags[_MISFIT - _ENDS])

    @misfits.setter
    def misfits(self, value: bool) -> None:
        self._flags[_MISFIT - _ENDS] = value

    def exchange(self, process_set: ProcessSet) -> None:
        """Learn the flags of all ranks. Collective."""
        if process_set.size() != 1:
            flags = torch.frombuffer(self._flags, dtype=torch.uint8)
            allreduce_(flags, name=self._name, op=Max, process_set=process_set)

    def is_started(self, number: int) -> bool:
        """Tell whether the gradient of a slot is started."""
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
