"""Stalls, of cells and of jobs of scripts: which operation waits for which rank, and where that rank is.

The report in one sentence is pure, and so is the monitor of a job, whose time is an argument. The monitor of a cell
never blocks, except for a rank's signal handler.

While no rank of a job waits, only rank 0 is queried, about twice a second: it knows which ranks are missing from an
operation. When a rank waits, or rank 0 does not answer, all ranks are queried, and silent ones are inspected from
outside. A stall of the same operation is reported again once it has lasted ten times as long, so that a rank that is
late in every epoch (it saves, it evaluates) does not fill the log.

Terms.
  waits      a rank's code has been inside the same operation for ``WAIT_S`` or longer
  missing    ranks that have not submitted the operation: all other ranks wait for them
  silent     a rank that has sent no sample for ``SILENT_S``: it is stopped, or C code keeps Python's lock
  inquiry    one query to several ranks: it ends when all have answered, or at its deadline
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hvd_kernel.diagnosis.inquiry import Cluster, Inquiry, stopped
from hvd_kernel.errors import ClusterError
from hvd_kernel.formatting.operation_names import OTHER_BACKEND
from hvd_kernel.formatting.rank_labels import label, rank_list
from hvd_kernel.protocol.messages import Frame, MetricsSample, Pending, Whereabouts

WAIT_S = 0.6
"""A wait of this length starts an inquiry: its result is on the screen within a second."""

SILENT_S = 0.7
"""Telemetry arrives every 0.2 s."""

MAX_TEXT = 60
MAX_NAME = 60

Places = Mapping[int, Whereabouts]

_STATES = {
    "idle": "{has} ended the cell",
    "stopped": "{is} stopped (SIGSTOP or a debugger)",
    "dead": "{is} dead",
    "ended": "{has} ended",
    "traceback": "{is} formatting the traceback of an error",
    "absent": "cannot be asked",
    "elsewhere": "another launcher has started",
}
_AT = {"silent": "in C code, called in", "prompt": "at a prompt in"}
_DOING = {
    "idle": "no cell runs",
    "stopped": "stopped (SIGSTOP or a debugger)",
    "dead": "dead",
    "prompt": "at a prompt",
    "silent": "in C code that keeps Python's lock",
    "ended": "has ended",
    "traceback": "formatting the traceback of an error",
    "absent": "cannot be asked: it has not called hvd.init(), or not with the hvd_kernel of its launcher",
    "elsewhere": "started by another launcher",
}
_MESSAGE = {f"{OTHER_BACKEND}send", f"{OTHER_BACKEND}recv"}
_WORDS = {"one": {"is": "is", "has": "has", "waits": "waits"}, "many": {"is": "are", "has": "have", "waits": "wait"}}


@dataclass
class _Latest:
    at: float
    since: float  # start of this operation, or of the time without one
    doing: tuple[str, int]


class Activity:
    """Tracks, from the samples of one run, which ranks wait and which are silent. Times are the reader's own."""

    def __init__(self, ranks: Iterable[int], now: float) -> None:
        self._latest = {rank: _Latest(now, now, ("", 0)) for rank in ranks}
        self._begun = now  # earlier silence does not count

    def observe(self, sample: MetricsSample, now: float) -> None:
        """Record a sample; the state "idle" marks a rank's last one."""
        if sample.rank not in self._latest:
            return
        if sample.state == "idle":
            del self._latest[sample.rank]
            return
        doing = (sample.waiting_for, sample.ops) if sample.state == "collective" else ("", 0)
        before = self._latest[sample.rank]
        since = before.since if before.doing == doing else now
        self._latest[sample.rank] = _Latest(now, since, doing)

    def begin_again(self, now: float) -> None:
        """Measure silence from now on: samples were not read in the meantime."""
        self._begun = now

    def some_wait(self, now: float) -> bool:
        """Return whether a rank has been in one operation for ``WAIT_S``."""
        return any(latest.doing[0] and now - latest.since >= WAIT_S for latest in self._latest.values())

    def runs(self, rank: int) -> bool:
        """Return whether a rank of the run has not sent its last sample."""
        return rank in self._latest

    def silent(self, now: float) -> set[int]:
        """Return the ranks that have sent no sample for ``SILENT_S`` although their cell runs."""
        return {rank for rank, latest in self._latest.items() if now - max(latest.at, self._begun) >= SILENT_S}

    def without_sample_since(self, moment: float) -> set[int]:
        """Return the ranks of which no sample was read after a moment although their cell runs."""
        return {rank for rank, latest in self._latest.items() if latest.at <= moment}


def whereabouts(places: Places) -> str:
    """Describe where ranks are: ``rank 2 is in C code, called in cell:4``."""
    parts = (f"{rank_list(group)} {_fill(text, len(group))}" for text, group in _grouped(places, places).items())
    return "; ".join(parts)


def sentence(places: Places, ranks: Collection[int]) -> str:
    """Describe what the ranks of a run wait for; "" if no operation waits for a rank.

    Parameters
    ----------
    places
        Where ranks are; ranks whose place is unknown are absent.
    ranks
        The ranks of the run: the cell does not run on any other missing rank.
    """
    oldest = awaited_operation(places)
    if oldest is None:
        return ""
    missing = [rank for rank in oldest.missing if rank in places or rank not in ranks]
    groups = _grouped({rank: place for rank, place in places.items() if rank in ranks}, missing).items()
    parts = [f"{rank_list(group)}, which {_fill(text, len(group))}" for text, group in groups]
    return f"{operation(oldest.name)} waits for {' and for '.join(parts)}" if parts else ""


def awaited(places: Places) -> set[int]:
    """Return the ranks for which an operation waits."""
    oldest = awaited_operation(places)
    return set(oldest.missing) if oldest else set()


def awaited_operation(places: Places) -> Pending | None:
    """Return the operation that has waited longest for missing ranks; None if none has waited for ``WAIT_S``."""
    stalled = (
        pending
        for place in places.values()
        for pending in place.pending
        if pending.missing and pending.seconds >= WAIT_S
    )
    longest = max(stalled, key=lambda pending: pending.seconds, default=None)
    return longest or _guess(places) or _on_other_backend(places)


def _grouped(places: Places, ranks: Iterable[int]) -> dict[str, list[int]]:
    where: dict[str, list[int]] = {}
    for rank in ranks:
        where.setdefault(_where(places.get(rank)), []).append(rank)
    return where


def _guess(places: Places) -> Pending | None:
    """Return the most likely awaited operation if the rank that would know it (usually 0) does not answer."""
    waiting = {rank: place.waiting_for for rank, place in places.items() if place.state == "collective"}
    mute = tuple(rank for rank, place in places.items() if place.state in ("silent", "stopped"))
    name = next(iter(waiting.values()), "")
    return Pending(name, 0.0, mute) if name and mute else None


def _on_other_backend(places: Places) -> Pending | None:
    """Return an operation on another backend than ours that waits for ranks which have not called it.

    The core does not know such an operation: ranks of its group that are somewhere else are missing.
    """
    for rank, place in sorted(places.items()):
        members = place.ranks if place.state == "collective" else ()
        missing = tuple(peer for peer in members if peer != rank and not _meets(place, places.get(peer), rank))
        if missing:
            return Pending(place.waiting_for, 0.0, missing)
    return None


def _meets(place: Whereabouts, peer: Whereabouts | None, rank: int) -> bool:
    """Return whether a peer is in the same operation as a rank, or in the other half of a message."""
    if peer is None or peer.state != "collective":
        return False
    if {place.waiting_for, peer.waiting_for} == _MESSAGE:
        return rank in peer.ranks
    return peer.waiting_for == place.waiting_for and set(peer.ranks) == set(place.ranks)


def _where(place: Whereabouts | None) -> str:
    if place is None:
        return "the cell does not run on"
    if place.state in _STATES:
        return _STATES[place.state]
    spot = _literal(_spot(place.frames))
    if place.state == "collective":
        return f"{{waits}} in {_literal(operation(place.waiting_for))} at {spot or 'no line of its own'}"
    doing = _AT.get(place.state, "in")
    return f"{{is}} {doing} {spot}" if spot else "{is} busy outside Python"


def _spot(frames: Sequence[Frame]) -> str:
    """Return the innermost call of the user's own code: ``data.py:41 load(): time.sleep(60)``."""
    calls = [frame for frame in frames if frame.is_user_code] or list(frames)
    return line(calls[-1]) if calls else ""


def line(frame: Frame) -> str:
    """Return one call as one line."""
    function = f" {frame.function}()" if frame.function.isidentifier() else ""
    text = frame.text if len(frame.text) <= MAX_TEXT else frame.text[: MAX_TEXT - 1] + "…"
    return f"{frame.place}{function}" + (f": {text}" if text else "")


def operation(name: str) -> str:
    """Format the core's name of an operation for users: ``allreduce 'grad/conv1'``, ``barrier``."""
    if name.startswith(OTHER_BACKEND):
        return name
    kind, _, tensor = name.partition(".")
    short = tensor if len(tensor) <= MAX_NAME else tensor[: MAX_NAME - 1] + "…"
    return f"{kind} '{short}'" if tensor and not tensor.startswith("noname") else kind


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _fill(text: str, ranks: int) -> str:
    return text.format(**_WORDS["one" if ranks == 1 else "many"])


def report(places: Places, program: str = "the cell") -> str:
    """Return every rank's stack, one block for ranks at the same place; ends with a newline unless empty."""
    blocks: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for rank, place in sorted(places.items()):
        calls = (*map(line, place.frames), *(f"C: {function}" for function in place.native[::-1]))
        blocks.setdefault((_doing(place, program), calls), []).append(rank)
    return "".join(
        f"{label(ranks)} {doing}\n" + "".join(f"    {call}\n" for call in calls)
        for (doing, calls), ranks in blocks.items()
    )


def _doing(place: Whereabouts, program: str) -> str:
    if place.state == "collective":
        return f"waiting in {operation(place.waiting_for)}"
    return f"in {program}'s own code" if place.state == "compute" else _DOING[place.state]


PROC_S = 0.2
"""Between two polls of /proc: a rank seen stopped twice in a row is stopped, not paused for a moment."""

QUERY_S = 2.0
"""Between two queries to the ranks."""

LATE_S = 0.4
"""A tick this late means that the notebook was delayed, and that samples of the meantime are still unread."""


class StallMonitor:
    """Feed it samples and call ``tick`` often; ``sentence`` describes why ranks wait, "" while they do not.

    ``awaited`` holds the ranks for which they wait.
    """

    def __init__(self, cluster: Cluster, ranks: Sequence[int]) -> None:
        self.sentence = ""
        self.awaited: set[int] = set()
        self._cluster = cluster
        self._ranks = tuple(ranks)
        self._ticked = time.monotonic()
        self._activity = Activity(ranks, self._ticked)
        self._seen_stopped: set[int] = set()
        self._stopped: set[int] = set()
        self._polled = self._queried = 0.0
        self._inquiry: Inquiry | None = None
        self._places: dict[int, Whereabouts] = {}

    def observe(self, sample: MetricsSample) -> None:
        """Record a sample of the run."""
        self._activity.observe(sample, time.monotonic())

    def tick(self) -> None:
        """Poll the processes, start an inquiry, or collect its answers, whatever is due."""
        now = time.monotonic()
        if now - self._ticked >= LATE_S:
            self._activity.begin_again(now)
        self._ticked = now
        if now - self._polled >= PROC_S:
            self._polled = now
            self._poll_processes()
        if not self._activity.some_wait(now):
            self._places, self._inquiry = {}, None
        elif self._inquiry is not None:
            self._collect(self._inquiry, now)
        elif now - self._queried >= QUERY_S:
            self._inquire(now)
        halted = {rank: Whereabouts(rank, "stopped") for rank in self._stopped}
        self.awaited = awaited(self._places)
        self.sentence = sentence(self._places | halted, self._ranks) or whereabouts(halted)

    def _poll_processes(self) -> None:
        """Update the set of stopped ranks."""
        seen = stopped(self._cluster) & set(self._ranks)
        certain = seen & self._seen_stopped
        if certain != self._stopped:
            self._places, self._inquiry, self._queried = {}, None, 0.0  # the known places are outdated
        self._seen_stopped, self._stopped = seen, certain

    def _inquire(self, now: float) -> None:
        self._queried = now
        try:
            self._inquiry = Inquiry(self._cluster, range(self._cluster.n))
        except ClusterError:  # the cluster is being stopped
            self._inquiry = None

    def _collect(self, inquiry: Inquiry, now: float) -> None:
        """Collect the answers once no more are expected, and inspect ranks that send nothing at all from outside.

        On a busy machine every tick may come late, so that no rank counts as silent. At the inquiry's deadline a rank
        without an answer, which another thread receives, and without a sample since the query is inspected too.
        """
        late = inquiry.silent()
        mute = late & (self._activity.silent(now) | self._stopped | set(self._cluster.dead))
        if over := now - self._queried >= QUERY_S:
            mute |= late & self._activity.without_sample_since(self._queried)
        if over or mute == late:
            answers = {rank: place for rank, place in inquiry.answers().items() if not self._is_between(place)}
            self._places, self._inquiry = answers | inquiry.from_outside(mute), None

    def _is_between(self, place: Whereabouts) -> bool:
        """Return whether a rank answered before it began the cell, or just as it finished it."""
        return place.state == "idle" and self._activity.runs(place.rank)


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
