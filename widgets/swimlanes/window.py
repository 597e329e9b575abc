"""The last seconds of some ranks: operations, waits, and for whom an operation waited. Pure: answers in, messages out.

Terms.
  lane   what is known of one rank, on the clock of the notebook's host
  late   the rank that an operation waited for: it asked last; and for how long this rank waited for it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hvd_kernel.protocol.operations import Open, Operation, Recent
from hvd_kernel.widgets.timeline import covered

KEEP_S = 20.0
"""How much of the past is kept."""

MOST_LANES = 8
MOST_STORED = 150
"""Operations of a lane that are stored with a cell that has ended: its last ones."""

SEEN_US = 50
"""Who asked so little later than the others was not waited for."""

APART_US = 1000
"""How far the clocks of two hosts may be apart, as they are known here."""

NOBODY = -1


class Drawn(NamedTuple):
    """An operation and for whom it waited; NOBODY: for none of these ranks."""

    operation: Operation
    late: int = NOBODY
    waited: int = 0  # microseconds

    def wire(self, strings: StringTable) -> list[int]:
        """Return it as it travels (widgets/js/lanes/model.js): numbers, strings by their place in the table."""
        one = self.operation
        times = [one.asked, one.ready, one.agreed, one.begun, one.end]
        said = [strings.place(word) for word in (one.kind, one.name, one.how)]
        return [*times, *said, one.tensors, one.bytes, one.merged, self.late, self.waited]


@dataclass
class Lane:
    """One rank."""

    operations: list[Drawn] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    cursor: tuple[int, int] = (0, 0)
    came: int = 0  # when the rank did: what others have done before is older than it
    shift: int | None = None  # from that rank's clock to the notebook's
    fresh: int = 0  # operations at the end that have not been sent
    fresh_waits: int = 0


class StringTable:
    """Texts that travel once."""

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
    """Lanes of some ranks. Not thread-safe: its owner holds a lock."""

    def __init__(self, here: str, base: int) -> None:
        self.lanes: dict[int, Lane] = {}
        self.now = self.base = base  # microseconds; times of messages are since base
        self.complete = True  # these are all ranks
        self._here = here
        self._strings = StringTable()
        self._told = 0  # strings that have been sent

    def cursors(self) -> dict[str, list[int]]:
        """Return each rank's, for the next question."""
        return {str(rank): list(lane.cursor) for rank, lane in self.lanes.items()}

    def take(self, answers: Mapping[int, Recent], now: int, *, over: bool = False) -> None:
        """Take a round of answers, which have come at ``now``, in microseconds of this host's CLOCK_MONOTONIC.

        over: the run is; what is kept is the time before its last operation, not before now.
        """
        fresh: dict[int, list[Operation]] = {}
        for rank, recent in answers.items():
            lane = self.lanes.setdefault(rank, Lane())
            lane.cursor = recent.cursor
            shift = self._shift(lane, recent, now)
            fresh[rank] = [_moved(one, shift) for one in recent.operations]
            waits = [(begin + shift - self.base, end + shift - self.base) for begin, end in recent.waits]
            lane.waits += waits
            lane.fresh_waits += len(waits)
            lane.open = [one._replace(since=one.since + shift - self.base) for one in recent.open]
            lane.came = recent.came + shift - self.base
        known = {
            rank: _by_name(lane.operations[-500:], fresh.get(rank, ()), self.base) for rank, lane in self.lanes.items()
        }
        for rank, found in fresh.items():
            lane = self.lanes[rank]
            lane.operations += [self._drawn(rank, _since(one, self.base), known) for one in found]
            lane.fresh += len(found)
        ends = [each.operation.end for lane in self.lanes.values() for each in lane.operations]
        self.now = max(ends, default=0) + self.base if over else now
        self._forget(self.now - self.base - round(KEEP_S * 1e6))

    def _shift(self, lane: Lane, recent: Recent, now: int) -> int:
        """Return what turns that rank's times into ours: nothing on this host, elsewhere the least delay so far."""
        found = 0 if recent.host == self._here else now - recent.now
        lane.shift = found if lane.shift is None else min(lane.shift, found)
        return lane.shift

    def _drawn(
        self, rank: int, one: Operation, known: Mapping[int, Mapping[tuple[str, str], list[Operation]]]
    ) -> Drawn:
        """Find who asked last: of each other rank the operation of that name in the same time."""
        if one.merged > 1:
            return Drawn(one)
        asked = {rank: one.ready}
        for other, by_name in known.items():
            same = [
                each
                for each in by_name.get((one.kind, one.name), ())
                if each.asked < one.end + APART_US and one.asked < each.end + APART_US
            ]
            if other != rank and same:
                asked[other] = min(same, key=lambda each: abs(each.agreed - one.agreed)).ready
        late = max(asked, key=lambda each: asked[each])
        waited = asked[late] - one.ready
        if late == rank or waited < SEEN_US:
            return Drawn(one)
        return Drawn(one, late, min(waited, max(0, one.agreed - one.ready)))

    def _forget(self, before: int) -> None:
        for lane in self.lanes.values():
            lane.operations = [each for each in lane.operations if each.operation.end > before]
            lane.waits = [each for each in lane.waits if each[1] > before]
            lane.fresh = min(lane.fresh, len(lane.operations))
            lane.fresh_waits = min(lane.fresh_waits, len(lane.waits))

    def news(self) -> dict[str, Any]:
        """Return what is new since the last call."""
        lanes = {
            str(rank): {
                "operations": [each.wire(self._strings) for each in _last(lane.operations, lane.fresh)],
                "waits": [list(each) for each in _last(lane.waits, lane.fresh_waits)],
                "open": [_open(one) for one in lane.open],
                "came": lane.came,
            }
            for rank, lane in self.lanes.items()
        }
        for lane in self.lanes.values():
            lane.fresh = lane.fresh_waits = 0
        told, self._told = self._told, len(self._strings.all)
        return {"now": self.now - self.base, "from": told, "words": self._strings.all[told:], "lanes": lanes}

    def whole(self, most: int | None = None) -> dict[str, Any]:
        """Return all of it, or of each lane the last ``most``; it needs nothing from before."""
        strings = StringTable() if most is not None else self._strings
        lanes = {
            str(rank): {
                "operations": [each.wire(strings) for each in _last(lane.operations, most)],
                "waits": [list(each) for each in _since_first(lane, most)],
                "open": [_open(one) for one in lane.open],
                "came": lane.came,
            }
            for rank, lane in self.lanes.items()
        }
        return {"now": self.now - self.base, "from": 0, "words": strings.all[:], "lanes": lanes, "whole": True}


def chosen(ranks: Sequence[int], slow: Iterable[int], picked: int | None) -> list[int]:
    """Return the ranks that have lanes: all of a few; of many the one that is picked, slow ones, and the lowest.

    >>> chosen(range(64), [40], 12)
    [0, 1, 2, 3, 4, 5, 12, 40]
    """
    first = [rank for rank in (picked, *slow) if rank is not None and rank in ranks]
    return sorted([*dict.fromkeys([*first, *ranks])][:MOST_LANES])


def late_shares(lanes: Mapping[int, Lane]) -> dict[int, int]:
    """Return for how many microseconds each rank was waited for: of the others' times the longest."""
    spans: dict[int, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for rank, lane in lanes.items():
        for each in lane.operations:
            if each.late != NOBODY:
                spans[each.late][rank].append((each.operation.ready, each.operation.ready + each.waited))
    return {late: round(max(map(covered, by.values()))) for late, by in spans.items()}


def _moved(one: Operation, shift: int) -> Operation:
    return one._replace(
        asked=one.asked + shift,
        ready=one.ready + shift,
        agreed=one.agreed + shift,
        begun=one.begun + shift,
        end=one.end + shift,
    )


def _since(one: Operation, base: int) -> Operation:
    return _moved(one, -base)


def _by_name(earlier: Iterable[Drawn], fresh: Iterable[Operation], base: int) -> dict[tuple[str, str], list[Operation]]:
    found: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in [*(each.operation for each in earlier), *(_since(each, base) for each in fresh)]:
        found[one.kind, one.name].append(one)
    return found


def _open(one: Open) -> list[Any]:
    return [one.name, one.since, list(one.missing)]


def _since_first(lane: Lane, most: int | None) -> list[tuple[int, int]]:
    """Return the waits in the time of the last ``most`` operations."""
    shown = _last(lane.operations, most)
    return [each for each in lane.waits if most is None or not shown or each[1] > shown[0].operation.asked]


def _last(items: list[Any], most: int | None) -> list[Any]:
    return items[:] if most is None else items[len(items) - min(most, len(items)) :]
