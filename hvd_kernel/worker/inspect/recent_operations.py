"""Recent operations of this rank, read from the core's ring of records when somebody looks: no record is made for it.

Terms.
  record   (start, duration in nanoseconds, phase, name, bytes, detail), as ``Engine.trace`` gives it: of each tensor
           its negotiation, the operation, and the operation's steps
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvd_kernel.core import session
from hvd_kernel.protocol.operations import Open, Operation, Recent
from hvd_kernel.worker import communication

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

Record = tuple[int, int, str, str, int, int]

MOST = 400
"""Operations of one answer; where there were more, those that are too short to be seen are shown as one."""

NEGOTIATES = "NEGOTIATE_"
_BEFORE = frozenset({"QUEUE", "WAIT_FOR_DATA", "INIT_NCCL", "INIT_DEVICES", "ALLOCATE_OUTPUT"})  # steps before the work
_MARKS = frozenset({"READY", "CYCLE"})
_COMPLETE_NS = 50_000_000  # an operation whose records came this long ago has all of them
_US = 1000  # nanoseconds
_MOST_OPEN = 4


def answer(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return what came in the last ``seconds``, and after this rank's of the ``cursors``, if it has one there.

    seconds: none means since the last cell began, which this rank knows best: a question takes its time to come.
    over: the cell is; nobody asks again for the end of its last operation.
    """
    now = time.monotonic_ns()
    generation, cursor = content["cursors"].get(str(control.rank), (0, 0))
    if generation != session.generation():  # another engine, another ring
        cursor = 0
    cursor, records = session.engine().trace(cursor) if session.is_initialized() else (0, [])
    found, waits, last = operations(records)
    if (
        found and not content.get("over") and now - found[-1].end * _US < _COMPLETE_NS
    ):  # its last records may not be here yet
        cursor, found = cursor - last, found[:-1]
    seconds = content["seconds"]
    since = round(1e6 * control.cell_begun) if seconds is None else now // _US - round(1e6 * seconds)
    found = [each for each in found if each.end > since]
    waits = [(begin, end) for begin, end in waits if end > since]
    pending = [
        Open(_said(one.name), round(now / _US - 1e6 * one.seconds), one.missing) for one in communication.pending()
    ]
    return Recent(
        socket.gethostname(),
        now // _US,
        (session.generation(), cursor),
        tuple(shortened(found, _gap([each.end for each in found]))),
        tuple(joined(waits, _gap([end for _, end in waits]))),
        tuple(pending[:_MOST_OPEN]),
        round(1e6 * control.came),
    ).wire(), []


def _gap(ends: Sequence[int]) -> int:
    """Return how much of the time is shown as one: nothing as long as there is not too much of it."""
    return max(1, (max(ends) - min(ends)) // MOST) if len(ends) > MOST else 0


def operations(records: Sequence[Record]) -> tuple[list[Operation], list[tuple[int, int]], int]:
    """Return the operations of these records, the waits, and how many records there are from the last operation on."""
    found: list[Operation] = []
    waits: list[tuple[int, int]] = []
    asked: dict[str, tuple[int, int]] = {}  # by name: when, and its place among the records
    at: dict[str, int] = {}  # by name: its operation in ``found``
    first = 0  # place of the last operation's first record
    span = (0, 0)
    for place, (start, duration, phase, name, nbytes, _detail) in enumerate(records):
        begin, end = start // _US, (start + duration) // _US
        if phase in _MARKS:
            continue
        if phase == "WAIT":
            waits.append((begin, end))
        elif phase.startswith(NEGOTIATES):
            asked[name] = (begin, place)
        elif name in asked:
            when, since = asked.pop(name)
            if found and found[-1].kind == phase and span == (start, duration):  # fused with the one before
                whole = found[-1]
                found[-1] = whole._replace(
                    asked=min(whole.asked, when),
                    ready=max(whole.ready, when),
                    tensors=whole.tensors + 1,
                    bytes=whole.bytes + nbytes,
                )
            else:
                found.append(Operation(when, when, begin, begin, end, phase, _plain(name, phase), "", 1, nbytes))
                first, span = since, (start, duration)
            at[name] = len(found) - 1
        elif name in at:
            one = found[at[name]]
            found[at[name]] = one._replace(begun=max(one.begun, end)) if phase in _BEFORE else one._replace(how=phase)
    return found, waits, len(records) - first if found else 0


def _plain(name: str, phase: str) -> str:
    """Return what the user calls it: in the core a name begins with its operation's."""
    return name.removeprefix(f"{phase.lower()}.")


def _said(name: str) -> str:
    """Write ``allreduce 'x'`` for the core's ``allreduce.x``."""
    kind, dot, own = name.partition(".")
    return f"{kind} '{own}'" if dot else name


def shortened(found: Iterable[Operation], gap: int) -> list[Operation]:
    """Show neighbours as one that together take less than ``gap`` microseconds; longer ones stay what they are."""
    kept: list[Operation] = []
    for one in found:
        last = kept[-1] if kept else None
        if last is not None and one.kind == last.kind and one.end - last.agreed < gap:
            kept[-1] = last._replace(
                ready=max(last.ready, one.ready),
                end=max(last.end, one.end),
                tensors=last.tensors + one.tensors,
                bytes=last.bytes + one.bytes,
                merged=last.merged + one.merged,
            )
        else:
            kept.append(one)
    return kept


def joined(spans: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Return intervals in order, overlapping ones and those closer than ``gap`` joined.

    >>> joined([(0, 2), (8, 9), (3, 4)], 2)
    [(0, 4), (8, 9)]
    """
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] < max(gap, 1):
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
