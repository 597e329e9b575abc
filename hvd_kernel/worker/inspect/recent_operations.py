"""Recent operations of this rank, read on request from the core's ring of records, which exists anyway.

Terms.
  record   (start, duration in nanoseconds, phase, name, bytes, detail), as ``Engine.trace`` returns it: for each tensor
           its negotiation, the operation, and the operation's steps
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import session
from hvd_kernel.formatting.operation_names import operation_label
from hvd_kernel.protocol.operations import Open, Operation, Recent
from hvd_kernel.worker import communication

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

Record = tuple[int, int, str, str, int, int]

MOST = 400
"""Operations of one answer; if there were more, those too short to be visible are merged."""

NEGOTIATES = "NEGOTIATE_"
_BEFORE = frozenset({"QUEUE", "WAIT_FOR_DATA", "INIT_NCCL", "INIT_DEVICES", "ALLOCATE_OUTPUT"})  # steps before the work
_MARKS = frozenset({"READY", "CYCLE"})
_COMPLETE_NS = 50_000_000  # age after which all records of an operation have arrived
_US = 1000  # nanoseconds
_MOST_OPEN = 4


def answer(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the operations of the last ``seconds``, after this rank's entry in ``cursors``, if it has one.

    seconds: None means since the start of the last cell, by this rank's clock, independent of the request's delay.
    over: the cell has ended, and no later request will return the end of its last operation.
    """
    now = time.monotonic_ns()
    generation, cursor = content["cursors"].get(str(control.rank), (0, 0))
    if generation != session.generation():  # a new engine has a new ring
        cursor = 0
    cursor, records = session.engine().trace(cursor) if session.is_initialized() else (0, [])
    recent, waits, last = operations(records)
    if recent and not content.get("over") and now - recent[-1].end * _US < _COMPLETE_NS:  # may lack its last records
        cursor, recent = cursor - last, recent[:-1]
    seconds = content["seconds"]
    since = round(1e6 * control.cell_begun) if seconds is None else now // _US - round(1e6 * seconds)
    recent = [operation for operation in recent if operation.end > since]
    waits = [(begin, end) for begin, end in waits if end > since]
    pending = [
        Open(_label(operation.name), round(now / _US - 1e6 * operation.seconds), operation.missing)
        for operation in communication.pending()
    ]
    return Recent(
        socket.gethostname(),
        now // _US,
        (session.generation(), cursor),
        tuple(shortened(recent, _gap([operation.end for operation in recent]))),
        tuple(joined(waits, _gap([end for _, end in waits]))),
        tuple(pending[:_MOST_OPEN]),
        round(1e6 * control.first_begun),
    ).wire(), []


def _gap(ends: Sequence[int]) -> int:
    """Return the time in which neighbours are merged, 0 if there are at most MOST of them."""
    return max(1, (max(ends) - min(ends)) // MOST) if len(ends) > MOST else 0


def operations(records: Sequence[Record]) -> tuple[list[Operation], list[tuple[int, int]], int]:
    """Return the operations of these records, the waits, and the number of records from the last operation on."""
    complete: list[Operation] = []
    waits: list[tuple[int, int]] = []
    requested: dict[str, tuple[int, int]] = {}  # by name: time, and index among the records
    index_of: dict[str, int] = {}  # by name: index in ``complete``
    first = 0  # index of the last operation's first record
    span = (0, 0)
    for index, (start, duration, phase, name, nbytes, _detail) in enumerate(records):
        begin, end = start // _US, (start + duration) // _US
        if phase in _MARKS:
            continue
        if phase == "WAIT":
            waits.append((begin, end))
        elif phase.startswith(NEGOTIATES):
            requested[name] = (begin, index)
        elif name in requested:
            when, since = requested.pop(name)
            if complete and complete[-1].kind == phase and span == (start, duration):  # fused with the previous one
                fused = complete[-1]
                complete[-1] = fused._replace(
                    asked=min(fused.asked, when),
                    ready=max(fused.ready, when),
                    tensors=fused.tensors + 1,
                    bytes=fused.bytes + nbytes,
                )
            else:
                complete.append(Operation(when, when, begin, begin, end, phase, _plain(name, phase), "", 1, nbytes))
                first, span = since, (start, duration)
            index_of[name] = len(complete) - 1
        elif name in index_of:
            operation = complete[index_of[name]]
            complete[index_of[name]] = (
                operation._replace(begun=max(operation.begun, end))
                if phase in _BEFORE
                else operation._replace(how=phase)
            )
    return complete, waits, len(records) - first if complete else 0


def _plain(name: str, phase: str) -> str:
    """Return the user's name of an operation: in the core it is prefixed with the kind of operation."""
    kind = phase.lower()
    return operation_label(name, kind).removeprefix(f"{kind}.")


def _label(name: str) -> str:
    """Return ``allreduce 'x'`` for the core's ``allreduce.x``."""
    kind, dot, users_name = name.partition(".")
    return f"{kind} '{users_name}'" if dot else name


def shortened(operations: Iterable[Operation], gap: int) -> list[Operation]:
    """Merge neighbours that together take less than ``gap`` microseconds; longer operations are unchanged."""
    kept: list[Operation] = []
    for operation in operations:
        last = kept[-1] if kept else None
        if last is not None and operation.kind == last.kind and operation.end - last.agreed < gap:
            kept[-1] = last._replace(
                ready=max(last.ready, operation.ready),
                end=max(last.end, operation.end),
                tensors=last.tensors + operation.tensors,
                bytes=last.bytes + operation.bytes,
                merged=last.merged + operation.merged,
            )
        else:
            kept.append(operation)
    return kept


def joined(spans: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Return intervals in order, with overlapping ones and those closer than ``gap`` joined.

    >>> joined([(0, 2), (8, 9), (3, 4)], 2)
    [(0, 4), (8, 9)]
    """
    intervals: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if intervals and begin - intervals[-1][1] < max(gap, 1):
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], end))
        else:
            intervals.append((begin, end))
    return intervals
