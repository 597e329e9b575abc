"""The last seconds of some ranks: operations, waits, and the rank each operation waited for, as messages. Pure.

Terms.
  lane   the operations and waits of one rank, on the clock of the notebook's host
  late   the rank that an operation waited for, which requested it last
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hvd_kernel.protocol.operations import Open, Operation, Recent
from hvd_kernel.widgets.timeline import covered

KEEP_S = 20.0
"""Length of the window."""

MOST_LANES = 8
MOST_STORED = 150
"""Operations of a lane that are stored with an ended cell: its last ones."""

SEEN_US = 50
"""Delays up to this do not count as waiting."""

APART_US = 1000
"""Largest error of the offset between the clocks of two hosts."""

NO_RANK = -1


class Drawn(NamedTuple):
    """An operation with the rank that it waited for; NO_RANK: none of these ranks."""

    operation: Operation
    late: int = NO_RANK
    waited: int = 0  # microseconds

    def wire(self, strings: StringTable) -> list[int]:
        """Return the wire form (widgets/js/lanes/model.js): numbers, strings by their place in the table."""
        op = self.operation
        times = [op.asked, op.ready, op.agreed, op.begun, op.end]
        places = [strings.place(text) for text in (op.kind, op.name, op.how)]
        return [*times, *places, op.tensors, op.bytes, op.merged, self.late, self.waited]


@dataclass
class Lane:
    """The lane of one rank."""

    operations: list[Drawn] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    cursor: tuple[int, int] = (0, 0)
    came: int = 0  # when the rank joined: it has no operations before that
    shift: int | None = None  # offset from the rank's clock to the notebook's
    fresh: int = 0  # operations at the end that have not been sent
    fresh_waits: int = 0


class StringTable:
    """Strings that are sent once, and then by their place."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """Return a text's place in the list."""
        if text not in self._places:
            self._places[text] = len(self.all)
            self.all.append(text)
        return self._places[text]


class Window:
    """The lanes of some ranks. Not thread-safe: its owner holds a lock."""

    def __init__(self, here: str, base: int) -> None:
        self.lanes: dict[int, Lane] = {}
        self.now = self.base = base  # microseconds; times of messages are since base
        self.complete = True  # all ranks have a lane
        self._here = here
        self._strings = StringTable()
        self._sent = 0  # strings

    def cursors(self) -> dict[str, list[int]]:
        """Return each rank's cursor, for the next query."""
        return {str(rank): list(lane.cursor) for rank, lane in self.lanes.items()}

    def update(self, answers: Mapping[int, Recent], now: int, *, over: bool = False) -> None:
        """Add a round of answers, received at ``now``, in microseconds of this host's CLOCK_MONOTONIC.

        ``over``: the run has ended, and the window ends at its last operation instead of ``now``.
        """
        fresh: dict[int, list[Operation]] = {}
        for rank, recent in answers.items():
            lane = self.lanes.setdefault(rank, Lane())
            lane.cursor = recent.cursor
            shift = self._shift(lane, recent, now)
            fresh[rank] = [_moved(operation, shift) for operation in recent.operations]
            waits = [(begin + shift - self.base, end + shift - self.base) for begin, end in recent.waits]
            lane.waits += waits
            lane.fresh_waits += len(waits)
            lane.open = [pending._replace(since=pending.since + shift - self.base) for pending in recent.open]
            lane.came = recent.came + shift - self.base
        by_rank = {
            rank: _by_name(lane.operations[-500:], fresh.get(rank, ()), self.base) for rank, lane in self.lanes.items()
        }
        for rank, operations in fresh.items():
            lane = self.lanes[rank]
            lane.operations += [self._drawn(rank, _since(operation, self.base), by_rank) for operation in operations]
            lane.fresh += len(operations)
        ends = [drawn.operation.end for lane in self.lanes.values() for drawn in lane.operations]
        self.now = max(ends, default=0) + self.base if over else now
        self._forget(self.now - self.base - round(KEEP_S * 1e6))

    def _shift(self, lane: Lane, recent: Recent, now: int) -> int:
        """Return the offset of a rank's clock: zero on this host, elsewhere the smallest delay so far."""
        delay = 0 if recent.host == self._here else now - recent.now
        lane.shift = delay if lane.shift is None else min(lane.shift, delay)
        return lane.shift

    def _drawn(
        self, rank: int, operation: Operation, by_rank: Mapping[int, Mapping[tuple[str, str], list[Operation]]]
    ) -> Drawn:
        """Find the rank that requested an operation last: compare each rank's operation of that name and time."""
        if operation.merged > 1:
            return Drawn(operation)
        ready = {rank: operation.ready}
        for other, by_name in by_rank.items():
            same = [
                candidate
                for candidate in by_name.get((operation.kind, operation.name), ())
                if candidate.asked < operation.end + APART_US and operation.asked < candidate.end + APART_US
            ]
            if other != rank and same:
                ready[other] = min(same, key=lambda candidate: abs(candidate.agreed - operation.agreed)).ready
        late = max(ready, key=lambda rank: ready[rank])
        waited = ready[late] - operation.ready
        if late == rank or waited < SEEN_US:
            return Drawn(operation)
        return Drawn(operation, late, min(waited, max(0, operation.agreed - operation.ready)))

    def _forget(self, before: int) -> None:
        for lane in self.lanes.values():
            lane.operations = [drawn for drawn in lane.operations if drawn.operation.end > before]
            lane.waits = [wait for wait in lane.waits if wait[1] > before]
            lane.fresh = min(lane.fresh, len(lane.operations))
            lane.fresh_waits = min(lane.fresh_waits, len(lane.waits))

    def news(self) -> dict[str, Any]:
        """Return the changes since the last call."""
        lanes = {
            str(rank): {
                "operations": [drawn.wire(self._strings) for drawn in _last(lane.operations, lane.fresh)],
                "waits": [list(wait) for wait in _last(lane.waits, lane.fresh_waits)],
                "open": [_open(pending) for pending in lane.open],
                "came": lane.came,
            }
            for rank, lane in self.lanes.items()
        }
        for lane in self.lanes.values():
            lane.fresh = lane.fresh_waits = 0
        sent, self._sent = self._sent, len(self._strings.all)
        return {"now": self.now - self.base, "from": sent, "words": self._strings.all[sent:], "lanes": lanes}

    def whole(self, most: int | None = None) -> dict[str, Any]:
        """Return all operations, or the last ``most`` of each lane, independent of earlier messages."""
        strings = StringTable() if most is not None else self._strings
        lanes = {
            str(rank): {
                "operations": [drawn.wire(strings) for drawn in _last(lane.operations, most)],
                "waits": [list(wait) for wait in _since_first(lane, most)],
                "open": [_open(pending) for pending in lane.open],
                "came": lane.came,
            }
            for rank, lane in self.lanes.items()
        }
        return {"now": self.now - self.base, "from": 0, "words": strings.all[:], "lanes": lanes, "whole": True}


def chosen(ranks: Sequence[int], slow: Iterable[int], picked: int | None) -> list[int]:
    """Return the ranks with lanes: all of a few; of many the picked one, the slow ones, and the lowest.

    >>> chosen(range(64), [40], 12)
    [0, 1, 2, 3, 4, 5, 12, 40]
    """
    first = [rank for rank in (picked, *slow) if rank is not None and rank in ranks]
    return sorted([*dict.fromkeys([*first, *ranks])][:MOST_LANES])


def late_shares(lanes: Mapping[int, Lane]) -> dict[int, int]:
    """Return for how many microseconds each rank was waited for: the longest of the others' times."""
    spans: dict[int, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for rank, lane in lanes.items():
        for drawn in lane.operations:
            if drawn.late != NO_RANK:
                spans[drawn.late][rank].append((drawn.operation.ready, drawn.operation.ready + drawn.waited))
    return {late: round(max(map(covered, by.values()))) for late, by in spans.items()}


def _moved(operation: Operation, shift: int) -> Operation:
    return operation._replace(
        asked=operation.asked + shift,
        ready=operation.ready + shift,
        agreed=operation.agreed + shift,
        begun=operation.begun + shift,
        end=operation.end + shift,
    )


def _since(operation: Operation, base: int) -> Operation:
    return _moved(operation, -base)


def _by_name(earlier: Iterable[Drawn], fresh: Iterable[Operation], base: int) -> dict[tuple[str, str], list[Operation]]:
    by_name: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for operation in [*(drawn.operation for drawn in earlier), *(_since(operation, base) for operation in fresh)]:
        by_name[operation.kind, operation.name].append(operation)
    return by_name


def _open(pending: Open) -> list[Any]:
    return [pending.name, pending.since, list(pending.missing)]


def _since_first(lane: Lane, most: int | None) -> list[tuple[int, int]]:
    """Return the waits during the last ``most`` operations."""
    shown = _last(lane.operations, most)
    return [wait for wait in lane.waits if most is None or not shown or wait[1] > shown[0].operation.asked]


def _last(items: list[Any], most: int | None) -> list[Any]:
    return items[:] if most is None else items[len(items) - min(most, len(items)) :]
