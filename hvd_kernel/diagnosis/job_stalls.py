"""Stall monitor of a job of scripts: whom to ask, when, and what to say of ranks that wait. Pure: the time goes in.

Only rank 0 is asked while all is well, about twice a second: it knows who has not come to an operation. When one waits,
or rank 0 gives no answer, the others are asked, and those that do not answer are looked at from outside. A stop of the
same operation is told again when it has lasted ten times as long, so that a rank that is late in every epoch (it
saves, it evaluates) does not fill the log.

Terms.
  inquiry   one question to several ranks: it ends when all have answered, or when its time is over
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hvd_kernel.diagnosis.stall import SILENT_S, WAIT_S, awaited_operation, operation, report, sentence
from hvd_kernel.protocol.messages import Whereabouts

LOOK_S = 0.4
"""Between two questions to rank 0, at most: an operation that waits is seen within ``WAIT_S`` and a moment."""

REPORT_PATIENCE_S = 1.0
"""A rank that has not answered a report by then does not run Python, and is looked at from outside."""

_SOONEST_S = 0.05
_ANSWER_S = 0.2  # a thread of a rank has had a turn by then, as a rule
_OUTSIDE_S = 2.5  # a look from outside is over by then
_AGAIN = 10.0
_PROGRAM = "the script"
_LEAD = 0

Ask = Callable[[int, float | None], None]
"""Rank, and the seconds after which it is looked at from outside (None: it is not)."""

Tell = Callable[[str], None]


class _Inquiry:
    def __init__(self, ranks: Iterable[int], until: float) -> None:
        self.ranks = set(ranks)
        self.until = until

    def over(self, found: dict[int, Whereabouts], now: float) -> bool:
        return now >= self.until or self.ranks <= set(found)


class JobStalls:
    """Feed it answers and ends, call ``tick`` when it is due; it asks, and tells sentences that end with a newline."""

    def __init__(self, ranks: Iterable[int], size: int, ask: Ask, tell: Tell, *, watches: bool = True) -> None:
        """Begin. ``size``: of the job, where other launchers have started more; ``watches``: not only on demand."""
        self._ranks = tuple(ranks)
        self._ask, self._tell = ask, tell
        self._watches = watches and _LEAD in self._ranks
        self._foreign = {rank: Whereabouts(rank, "elsewhere") for rank in range(size) if rank not in self._ranks}
        self._connected: set[int] = set()
        self._ended: dict[int, Whereabouts] = {}
        self._found: dict[int, Whereabouts] = {}  # of this inquiry
        self._inquiry: _Inquiry | None = None
        self._outside = False  # it looks from outside
        self._reported: dict[int, Whereabouts] = {}
        self._report: _Inquiry | None = None
        self._asked_at: float | None = None  # rank 0, that has not answered
        self._next = 0.0  # when rank 0 is asked
        self._told: dict[str, float] = {}  # operation -> seconds of waiting after which it is told again

    def connected(self, rank: int, now: float) -> None:
        """Take note of a rank that can be asked from now on."""
        self._connected.add(rank)
        self._next = max(self._next, now + _SOONEST_S)

    def ended(self, rank: int) -> None:
        """Take note of the end of a rank."""
        self._connected.discard(rank)
        self._ended[rank] = Whereabouts(rank, "ended")

    def answered(self, place: Whereabouts, now: float) -> None:
        """Take what is known of a rank."""
        if place.state == "absent":
            self._connected.discard(place.rank)
        self._found[place.rank] = self._reported[place.rank] = place
        if place.rank == _LEAD and self._asked_at is not None:
            self._asked_at = None
            self._judge(place, now)

    def report(self, now: float) -> None:
        """Have every rank's stack told as soon as they are known."""
        if self._report is None:
            self._reported = {}
            self._report = _Inquiry([rank for rank in self._ranks if rank not in self._ended], now + _OUTSIDE_S)
            for rank in self._report.ranks:
                self._ask(rank, REPORT_PATIENCE_S)

    def due(self) -> float:
        """Return when ``tick`` has to be called though nothing comes."""
        times = [inquiry.until for inquiry in (self._inquiry, self._report) if inquiry is not None]
        if self._looks():
            times.append(self._next if self._asked_at is None else self._asked_at + SILENT_S)
        return min(times, default=float("inf"))

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self._report is not None and self._report.over(self._reported | self._ended, now):
            self._report = None
            places = {rank: place for rank, place in self._unknown().items() if rank in self._ranks}
            self._tell("where the ranks are:\n" + report(places | self._reported | self._ended, _PROGRAM))
        if self._inquiry is not None and self._inquiry.over(self._found, now):
            self._conclude(now)
        elif self._looks() and self._asked_at is None and now >= self._next:
            self._asked_at = now
            self._ask(_LEAD, None)
        elif self._looks() and self._asked_at is not None and now >= self._asked_at + SILENT_S:
            self._asked_at = None
            self._inquire(now, {})

    def _unknown(self) -> dict[int, Whereabouts]:
        """Return what is said of ranks of which nothing is known."""
        states = {rank: "silent" if rank in self._connected else "absent" for rank in self._ranks}
        return self._foreign | {rank: Whereabouts(rank, state) for rank, state in states.items()}

    def _looks(self) -> bool:
        return self._watches and self._inquiry is None and _LEAD in self._connected

    def _judge(self, place: Whereabouts, now: float) -> None:
        """Decide after an answer of rank 0 whether the others are asked."""
        waits = [each for each in place.pending if each.missing]
        if any(each.seconds >= max(WAIT_S, self._told.get(operation(each.name), 0.0)) for each in waits):
            self._inquire(now, {_LEAD: place})
            return
        longest = max((each.seconds for each in waits if each.seconds < WAIT_S), default=0.0)
        self._next = now + min(LOOK_S, max(_SOONEST_S, WAIT_S - longest))

    def _inquire(self, now: float, known: dict[int, Whereabouts]) -> None:
        self._found, self._outside = known, False
        self._inquiry = _Inquiry(self._connected, now + _ANSWER_S)
        for rank in sorted(self._connected - set(known)):
            self._ask(rank, None)

    def _conclude(self, now: float) -> None:
        silent = self._connected - set(self._found)
        waits = any(each.seconds >= WAIT_S for place in self._found.values() for each in place.pending)
        if silent and waits and not self._outside:
            self._outside = True
            self._inquiry = _Inquiry(silent, now + _OUTSIDE_S)
            for rank in sorted(silent):
                self._ask(rank, 0.0)
            return
        self._inquiry, self._next = None, now + (LOOK_S if _LEAD in self._found else _OUTSIDE_S)
        self._explain()

    def _explain(self) -> None:
        """Tell why ranks wait, unless that has been told."""
        waits = awaited_operation(self._found)
        if waits is None:
            return
        name = operation(waits.name)
        alike = (each for place in self._found.values() for each in place.pending if operation(each.name) == name)
        seconds = max((each.seconds for each in alike), default=0.0)
        places = self._unknown() | self._found | self._ended
        said = sentence(places, places)
        if said and seconds >= self._told.get(name, 0.0):
            self._told[name] = seconds * _AGAIN
            self._tell(f"{said}\n")
