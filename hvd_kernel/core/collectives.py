"""The collectives, once for all frameworks: each function enqueues an operation on arrays, and returns its handle.

A framework provides a ``Memory``, which reads its arrays and makes its results. ``handles.synchronize`` waits, and
returns a list of results, or what a ``form`` makes of this list.

Terms.
  memory   kind of memory that holds operands and results: of the host, of a GPU, of a framework's tensors
  operand  an array as the core reads it: its place (see tensor), and the owner of the memory
  group    id of a process set; 0: all ranks
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from hvd_kernel.core import handles
from hvd_kernel.core.handles import Finish, InOut, Scales
from hvd_kernel.core.process_set_registry import registered
from hvd_kernel.core.tensor import SCATTERED, Array, Place, check_reducible, from_buffer, number_of

Form = Callable[[list[Any]], Any]


class Operand(Protocol):
    """Memory of an array; it keeps its owner alive."""

    @property
    def place(self) -> Place:
        """Address, shape and type, and on a GPU device and stream."""


class Memory(Protocol):
    """Kind of memory whose arrays can be sent, and received in the core's own memory."""

    def operand(self, value: Any, op: int | None = None) -> Any:
        """Return an array's memory.

        Raises
        ------
        ValueError
            The core does not support the array's type, or has no reduction ``op`` for it.
        """

    def received(self, operands: Sequence[Any], outcome: Any) -> list[Any]:
        """Return buffers of the core as arrays, one for each operand, of its type."""


class OutputMemory(Memory, Protocol):
    """Kind of memory that the core can also write results to."""

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """Return memory for a result of an operand's type."""

    def written(self, outputs: Sequence[Any], operands: Sequence[Any], outcome: Any) -> list[Any]:
        """Return the outputs, which the core has written, as arrays."""


def allreduce(
    memory: OutputMemory,
    values: Sequence[Any],
    name: str,
    op: int,
    scales: Scales,
    *,
    group: int = 0,
    in_place: bool = False,
    form: Form | None = None,
    waits: bool = False,
) -> int:
    """Reduce arrays, all of them or none, into new ones or in place."""
    places, finish = _same_shapes(memory, values, op, in_place, form)
    return handles.allreduce_places(name, places, op, scales, finish, group, waits)


def reducescatter(
    memory: OutputMemory,
    values: Sequence[Any],
    name: str,
    op: int,
    scales: Scales,
    *,
    group: int = 0,
    form: Form | None = None,
    waits: bool = False,
) -> int:
    """Reduce arrays, all of them or none, and return this rank's rows of each."""
    operands = [memory.operand(value, op if op in SCATTERED else None) for value in values]
    outputs = [memory.empty(share_of(operand.place[1], group), operand) for operand in operands]
    finish = _formed(partial(memory.written, outputs, operands), form)
    return handles.reducescatter_places(name, _in_and_out(operands, outputs), op, scales, finish, group, waits)


def broadcast(
    memory: OutputMemory,
    values: Sequence[Any],
    name: str,
    root_rank: int,
    *,
    group: int = 0,
    in_place: bool = False,
    form: Form | None = None,
    waits: bool = False,
) -> int:
    """Return the root's arrays on every rank, as new ones or in place; ``root_rank`` is a global rank."""
    places, finish = _same_shapes(memory, values, None, in_place, form)
    return handles.broadcast_places(name, places, root_rank, finish, group, waits)


def allgather(
    memory: Memory,
    values: Sequence[Any],
    name: str,
    *,
    group: int = 0,
    form: Form | None = None,
    waits: bool = False,
) -> int:
    """Return the rows of all ranks, of each array."""
    operands = [memory.operand(value) for value in values]
    finish = _formed(partial(memory.received, operands), form)
    return handles.allgather_places(name, [operand.place for operand in operands], finish, group, waits=waits)


def alltoall(
    memory: Memory,
    value: Any,
    name: str,
    splits: Sequence[int] | None,
    *,
    group: int = 0,
    counts: Callable[[Sequence[int]], Any] = list,
    waits: bool = False,
) -> int:
    """Send rows to every rank; the result is a pair: the received rows, and ``counts`` of their number by rank."""
    operand = memory.operand(value)

    def finish(outcome: Any) -> tuple[Any, Any]:
        (rows,) = memory.received((operand,), outcome)
        return rows, counts(outcome.sizes)

    return handles.alltoall_place(name, operand.place, splits, finish, group, waits=waits)


def share_of(shape: Sequence[int], group: int) -> tuple[int, ...]:
    """Return the shape of this rank's rows after a reducescatter.

    Raises
    ------
    ValueError
        The array has no rows.
    """
    if not shape:
        raise ValueError("Reducescatter does not support scalar inputs")
    engine = handles.current_engine()
    members = registered()[group] if group else range(engine.size)
    size, rank = len(members), members.index(engine.rank)
    return (shape[0] // size + (rank < shape[0] % size), *shape[1:])


def _same_shapes(
    memory: OutputMemory, values: Sequence[Any], op: int | None, in_place: bool, form: Form | None
) -> tuple[list[InOut], Finish]:
    """Return the places of arrays and of results with their shapes, and the function that makes the result."""
    operands = [memory.operand(value, op) for value in values]
    outputs = operands if in_place else [memory.empty(operand.place[1], operand) for operand in operands]
    return _in_and_out(operands, outputs), _formed(partial(memory.written, outputs, operands), form)


def _in_and_out(operands: Sequence[Operand], outputs: Sequence[Operand]) -> list[InOut]:
    if outputs is operands:
        return [(operand.place[0], *operand.place) for operand in operands]
    if len(operands) == 1:  # most calls: half the time of the loop
        operand = operands[0]
        return [(operand.place[0], outputs[0].place[0], *operand.place[1:])]
    pairs = zip(operands, outputs, strict=True)
    return [(operand.place[0], output.place[0], *operand.place[1:]) for operand, output in pairs]


def _formed(finish: Finish, form: Form | None) -> Finish:
    """Return a function that makes the result; it keeps operands and outputs alive until then."""
    return finish if form is None else lambda outcome: form(finish(outcome))


class HostOperand(Struct, frozen=True, gc=False):
    """A contiguous NumPy array."""

    array: Array
    place: Place


class HostMemory:
    """Memory of the host; results are NumPy arrays."""

    def operand(self, value: Any, op: int | None = None) -> HostOperand:
        """Return the memory of an array on the host; a copy of anything else, and of an array that has gaps."""
        array = np.asarray(value)
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        number = number_of(array.dtype)
        if op is not None:
            check_reducible(number, op)
        return HostOperand(array, (array.ctypes.data, array.shape, number))

    def empty(self, shape: tuple[int, ...], like: HostOperand) -> HostOperand:
        """Return memory of a new array."""
        array = np.empty(shape, like.array.dtype)
        return HostOperand(array, (array.ctypes.data, shape, like.place[2]))

    def written(self, outputs: Sequence[HostOperand], operands: Sequence[HostOperand], outcome: Any) -> list[Any]:
        """Return the outputs' arrays; the operation is complete."""
        del operands, outcome
        return [output.array for output in outputs]

    def received(self, operands: Sequence[HostOperand], outcome: Any) -> list[Any]:
        """Return arrays of the core's memory."""
        pairs = zip(outcome.buffers, operands, strict=True)
        return [from_buffer(buffer, operand.array.dtype) for buffer, operand in pairs]


HOST = HostMemory()
