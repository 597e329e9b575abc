"""Stall monitor of a job of scripts: decides which ranks to query, when, and what to report. Pure: time is an argument.

While no rank waits, only rank 0 is queried, about twice a second: it knows which ranks are missing from an operation.
When a rank waits, or rank 0 does not answer, all ranks are queried, and silent ones are inspected from outside. A stall
of the same operation is reported again once it has lasted ten times as long, so that a rank that is late in every
epoch (it saves, it evaluates) does not fill the log.

Terms.
  inquiry   one query to several ranks: it ends when all have answered, or at its deadline
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hvd_kernel.diagnosis.stall import SILENT_S, WAIT_S, awaited_operation, operation, report, sentence
from hvd_kernel.protocol.messages import Whereabouts

POLL_S = 0.4
"""Longest pause between two queries to rank 0: a stalled operation is detected shortly after ``WAIT_S``."""

REPORT_PATIENCE_S = 1.0
"""A rank that has not answered a report by then does not run Python, and is inspected from outside."""

_SOONEST_S = 0.05
_ANSWER_S = 0.2  # usually enough for a thread of a rank to be scheduled and answer
_OUTSIDE_S = 2.5  # an inspection from outside takes less
_AGAIN = 10.0
_PROGRAM = "the script"
_LEAD = 0

Query = Callable[[int, float | None], None]
"""Rank, and the seconds after which it is inspected from outside (None: never)."""

Report = Callable[[str], None]


class _Inquiry:
    def __init__(self, ranks: Iterable[int], until: float) -> None:
        self.ranks = set(ranks)
        self.until = until

    def over(self, places: dict[int, Whereabouts], now: float) -> bool:
        return now >= self.until or self.ranks <= set(places)


class JobStalls:
    """Feed it answers and exits, call ``tick`` when due; it queries ranks, and reports newline-terminated text."""

    def __init__(self, ranks: Iterable[int], size: int, query: Query, report: Report, *, watches: bool = True) -> None:
        """Create the monitor.

        Parameters
        ----------
        ranks
            The ranks that this launcher has started.
        size
            The size of the job: other launchers may have started more ranks.
        query, report
            Send a query to a rank, and write text for the user.
        watches
            Watch all the time; False: report only on demand.
        """
        self._ranks = tuple(ranks)
        self._query, self._write = query, report
        self._watches = watches and _LEAD in self._ranks
        self._foreign = {rank: Whereabouts(rank, "elsewhere") for rank in range(size) if rank not in self._ranks}
        self._connected: set[int] = set()
        self._exited: dict[int, Whereabouts] = {}
        self._places: dict[int, Whereabouts] = {}  # of this inquiry
        self._inquiry: _Inquiry | None = None
        self._outside = False  # the inquiry inspects ranks from outside
        self._reported: dict[int, Whereabouts] = {}
        self._report: _Inquiry | None = None
        self._queried_at: float | None = None  # time of the unanswered query to rank 0
        self._next = 0.0  # time of the next query to rank 0
        self._report_again: dict[str, float] = {}  # operation -> seconds of waiting after which to report it again

    def connected(self, rank: int, now: float) -> None:
        """Record a rank that can be queried from now on."""
        self._connected.add(rank)
        self._next = max(self._next, now + _SOONEST_S)

    def exited(self, rank: int) -> None:
        """Record that a rank has exited."""
        self._connected.discard(rank)
        self._exited[rank] = Whereabouts(rank, "ended")

    def answered(self, place: Whereabouts, now: float) -> None:
        """Record the answer of a rank."""
        if place.state == "absent":
            self._connected.discard(place.rank)
        self._places[place.rank] = self._reported[place.rank] = place
        if place.rank == _LEAD and self._queried_at is not None:
            self._queried_at = None
            self._judge(place, now)

    def report(self, now: float) -> None:
        """Start an inquiry that reports the stack of every rank once all are known."""
        if self._report is None:
            self._reported = {}
            self._report = _Inquiry([rank for rank in self._ranks if rank not in self._exited], now + _OUTSIDE_S)
            for rank in self._report.ranks:
                self._query(rank, REPORT_PATIENCE_S)

    def due(self) -> float:
        """Return the time by which to call ``tick`` if no answer arrives before."""
        times = [inquiry.until for inquiry in (self._inquiry, self._report) if inquiry is not None]
        if self._polls():
            times.append(self._next if self._queried_at is None else self._queried_at + SILENT_S)
        return min(times, default=float("inf"))

    def tick(self, now: float) -> None:
        """Send the queries and reports that are due."""
        if self._report is not None and self._report.over(self._reported | self._exited, now):
            self._report = None
            places = {rank: place for rank, place in self._defaults().items() if rank in self._ranks}
            self._write("where the ranks are:\n" + report(places | self._reported | self._exited, _PROGRAM))
        if self._inquiry is not None and self._inquiry.over(self._places, now):
            self._conclude(now)
        elif self._polls() and self._queried_at is None and now >= self._next:
            self._queried_at = now
            self._query(_LEAD, None)
        elif self._polls() and self._queried_at is not None and now >= self._queried_at + SILENT_S:
            self._queried_at = None
            self._inquire(now, {})

    def _defaults(self) -> dict[int, Whereabouts]:
        """Return the place to report for each rank that has not answered."""
        states = {rank: "silent" if rank in self._connected else "absent" for rank in self._ranks}
        return self._foreign | {rank: Whereabouts(rank, state) for rank, state in states.items()}

    def _polls(self) -> bool:
        return self._watches and self._inquiry is None and _LEAD in self._connected

    def _judge(self, place: Whereabouts, now: float) -> None:
        """Decide after an answer of rank 0 whether to query all ranks."""
        waits = [pending for pending in place.pending if pending.missing]
        if any(wait.seconds >= max(WAIT_S, self._report_again.get(operation(wait.name), 0.0)) for wait in waits):
            self._inquire(now, {_LEAD: place})
            return
        longest = max((wait.seconds for wait in waits if wait.seconds < WAIT_S), default=0.0)
        self._next = now + min(POLL_S, max(_SOONEST_S, WAIT_S - longest))

    def _inquire(self, now: float, places: dict[int, Whereabouts]) -> None:
        self._places, self._outside = places, False
        self._inquiry = _Inquiry(self._connected, now + _ANSWER_S)
        for rank in sorted(self._connected - set(places)):
            self._query(rank, None)

    def _conclude(self, now: float) -> None:
        silent = self._connected - set(self._places)
        waits = any(pending.seconds >= WAIT_S for place in self._places.values() for pending in place.pending)
        if silent and waits and not self._outside:
            self._outside = True
            self._inquiry = _Inquiry(silent, now + _OUTSIDE_S)
            for rank in sorted(silent):
                self._query(rank, 0.0)
            return
        self._inquiry, self._next = None, now + (POLL_S if _LEAD in self._places else _OUTSIDE_S)
        self._explain()

    def _explain(self) -> None:
        """Report why ranks wait, unless that was reported already."""
        awaited = awaited_operation(self._places)
        if awaited is None:
            return
        name = operation(awaited.name)
        waits = [wait for place in self._places.values() for wait in place.pending if operation(wait.name) == name]
        seconds = max((wait.seconds for wait in waits), default=0.0)
        places = self._defaults() | self._places | self._exited
        explanation = sentence(places, places)
        if explanation and seconds >= self._report_again.get(name, 0.0):
            self._report_again[name] = seconds * _AGAIN
            self._write(f"{explanation}\n")
