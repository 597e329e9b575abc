"""Dashboard state: the figures of every rank, as messages for the browser, and their summary. Pure but for its clock.

Terms.
  row        the figures of one rank, as the table shows them
  snapshot   the whole state; it replaces all earlier messages
  increment  the changes since the last increment; rows are absolute, curves and log lines are appended
  mark       a point on the cell's time axis: a rank died, joined or left, or steps were lost
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hvd_kernel.diagnosis.limits_of_run import Communication, communication
from hvd_kernel.diagnosis.stragglers import Stragglers
from hvd_kernel.formatting import units
from hvd_kernel.processes.bandwidth import bus_factor
from hvd_kernel.protocol.messages import GPU_FIGURES, MetricsSample
from hvd_kernel.widgets.definitions import BUS, COMM, SAMPLES
from hvd_kernel.widgets.series import FEW, HIGH, LOW, VALUE, Grid, LimitsWindow, Rates, Track, mean, short

ROWS_EVERY = 5
"""Rows of many ranks are sent with every fifth increment, once a second: each change of a table costs a layout."""

MOST_ROWS = 64
"""Limit of rows in an increment; of more ranks those whose last row is oldest are sent first."""

GB = 1e9
MAX_NAMES = 8
MAX_NAME = 48

_SNAPSHOTS = frozenset(ROWS_EVERY**i for i in range(14))

Kind = Literal["died", "joined", "left", "lost", "not finite"]

MOST_MARKS = 40
"""Limit of the marks of a cell; later ones are only counted."""

Message = dict[str, Any]
"""JSON-able; the keys are those of ``Board.snapshot`` and ``Board.increment``."""


class Row(NamedTuple):
    """The figures of one rank; on the wire a list in this order (widgets/js/messages.js has the same table)."""

    state: str
    waiting_for: str
    step: int
    samples_per_s: float | None
    comm: float | None
    wait: float | None
    bus: float | None  # bus bandwidth, GB/s
    cpu: float | None
    rss: int
    gpu: tuple[float | None, ...]  # in the order of GPU_FIGURES; () without a device
    logged: tuple[float | str | None, ...]  # in the order of Board.names; "nan", "inf" as text


class Size(NamedTuple):
    """The number of ranks, if the panel can change it; on the wire a list in this order (widgets/js/head.js)."""

    n: int
    target: int | None = None  # the requested number, until it is reached
    note: str = ""  # the progress, or why it failed


class Mark(NamedTuple):
    """A mark; on the wire a list in this order (widgets/js/charts/marks.js)."""

    t: float  # seconds since the start of the cell
    kind: Kind
    label: str


class Marks:
    """The marks of a cell."""

    def __init__(self) -> None:
        self.shown: list[Mark] = []
        self.count = 0

    def add(self, t: float, kind: Kind, label: str) -> None:
        """Add a mark."""
        self.count += 1
        if len(self.shown) < MOST_MARKS:
            self.shown.append(Mark(round(t, 2), kind, label))

    def wire(self) -> list[list[float | str]]:
        """Return the marks in wire form."""
        return [list(mark) for mark in self.shown]


class Board:
    """State of all ranks of one cell. Not thread-safe: its owner holds a lock."""

    def __init__(
        self,
        ranks: Sequence[int],
        title: str,
        clock: Callable[[], float],
        before: Mapping[int, MetricsSample] | None = None,
        limits: LimitsWindow | None = None,
    ) -> None:
        self.ranks = tuple(ranks)
        self.title = title
        self.names: list[str] = []
        self.unnamed = 0
        self.log = LogTail()
        self.states: dict[int, str] | None = None
        self.marks = Marks()
        self.wait = ""  # why ranks wait, in one sentence
        self.warnings: list[str] = []  # about the run, as long as it is shown
        self.other_ranks = ""  # other notebooks' ranks on the host, in one sentence
        self.size: Size | None = None  # if the number of ranks can be changed
        self._left: set[int] = set()  # ranks that have left the cell
        self.grid = Grid(len(self.ranks), limit=max(60, min(300, 6000 // max(1, len(self.ranks)))))
        self.tracks = {rank: Track((before or {}).get(rank)) for rank in self.ranks}
        self.logged: dict[int, dict[str, float]] = {rank: {} for rank in self.ranks}
        self._marked: set[str] = set()  # names with a mark for such a value
        self._stragglers = Stragglers(self.ranks)
        self._limits = limits or LimitsWindow()
        self._bottleneck: list[str] = []  # sentences about what limits the run
        self.communication = Communication()  # the figures of these sentences
        self._judged = 0.0
        self._sent_limits: list[str] = []
        self._sent_head: Message = {}
        self._clock = clock
        self._start = clock()
        self.began: float | None = None  # seconds at the first step
        self._seconds: float | None = None
        self._changed: dict[int, None] = {}  # ranks with news since the last increment, oldest news first
        self._fresh: set[int] = set()  # ranks with a sample since the last column
        self._seq = self._sent_columns = self._sent_lines = self._sent_marks = self._merges = 0
        self._sent_open: list[list[Any]] = []
        self._sent_ranks = self.ranks

    @property
    def seconds(self) -> float:
        """Seconds since the start of the cell; constant after finish()."""
        return self._clock() - self._start if self._seconds is None else self._seconds

    def feed(self, sample: MetricsSample) -> None:
        """Add a sample of a known rank; samples of others are ignored."""
        track = self.tracks.get(sample.rank)
        if track is None or sample.rank in self._left or self.states is not None:
            return
        if sample.rank in self._fresh and self._due(late=False):  # a new round of telemetry starts: close the last one
            self._column()
        track.add(sample, self.seconds)
        if self.began is None and track.total.steps:
            self.began = round(self.seconds, 2)
        self._stragglers.feed(sample)
        self._limits.feed(sample)
        self.logged[sample.rank] = track.logged()
        self._learn(self.logged[sample.rank])
        for name, alarm in sample.not_finite.items():
            if name not in self._marked:
                self._marked.add(name)
                self.mark("not finite", f"{name[:MAX_NAME]} is {units.not_finite(alarm.value)} at step {alarm.step}")
        self._changed[sample.rank] = None
        self._fresh.add(sample.rank)
        if self._due(late=len(self._fresh) < len(self._present)):
            self._column()

    def warn(self, text: str) -> None:
        """Show a warning beside the sentences about what limits the run."""
        self.warnings.append(text)

    def mark(self, kind: Kind, label: str) -> None:
        """Mark the current time on the time axis."""
        self.marks.add(self.seconds, kind, label)

    def join(self, rank: int) -> None:
        """Add a rank that is new in the cell, or replaces an earlier one."""
        if rank not in self.tracks:
            self.ranks = (*self.ranks, rank)
            self.grid.widen()
        if rank not in self.tracks or rank in self._left:
            self.tracks[rank], self.logged[rank] = Track(None), {}
        self._left.discard(rank)
        self._stragglers = Stragglers(self._present)
        self._changed[rank] = None

    def leave(self, rank: int) -> None:
        """Mark a rank as left; its row stays."""
        self._left.add(rank)
        self._fresh.discard(rank)
        self._stragglers = Stragglers(self._present)
        self._changed[rank] = None

    @property
    def _present(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self._left]

    def finish(self, states: Mapping[int, str]) -> None:
        """Freeze the board: rows then have each rank's final state and its means over the cell."""
        if self.states is not None:
            return
        if any(track.last for track in self.tracks.values()):
            self._column()
        self._seconds = self.seconds
        self.states = {rank: states.get(rank, "done") for rank in self.ranks}
        self._judge(over=True)
        self._changed = dict.fromkeys(self.ranks)

    def snapshot(self) -> Message:
        """Return the whole state."""
        return {
            "seq": self._seq,
            "title": self.title,
            "ranks": list(self.ranks),
            "finished": self.states is not None,
            "rows": {str(rank): list(self.row(rank)) for rank in self.ranks},
            **self._head(),
            "curves": {
                "t": self.grid.t[:],
                "step": self.grid.steps[:],
                "y": {name: columns[:] for name, columns in self.grid.curves.items()},
            },
            "log": [list(line) for line in self.log.lines],
            "lines": self.log.count,
            "open": [list(line) for line in self.log.open_lines()],
            "marks": self.marks.wire(),
            "limits": self.limits,
        }

    @property
    def limits(self) -> list[str]:
        """Warnings, sentences about what limits the run, and other ranks on the host."""
        return [*self.warnings, *self._bottleneck, *([self.other_ranks] if self.other_ranks else [])]

    def _judge(self, *, over: bool) -> None:
        """Derive the sentences and the figures of communication, from the same samples."""
        figures = self._limits.figures(self._present, over=over)
        self.communication = communication(figures)
        self._bottleneck = self._limits.bottleneck(figures, self._stragglers.slow).lines

    def increment(self) -> tuple[Message, bool]:
        """Return the changes since the last call, and whether a snapshot must follow.

        A snapshot follows a change of the ranks, and calls 1, 5, 25, ..., for views that missed increments while they
        were loading. Unchanged values are omitted. If columns were merged since, the page merges its own columns in the
        same way (``merges``).
        """
        self._seq += 1
        merges = self.grid.merges - self._merges
        start = self._sent_columns >> merges
        turn = len(self.ranks) <= FEW or self._seq % ROWS_EVERY == 0
        sent = list(self._changed)[:MOST_ROWS] if turn else []
        head = self._head()
        news: Message = {
            "seq": self._seq,
            "rows": {str(rank): list(self.row(rank)) for rank in sent},
            **{name: value for name, value in head.items() if name == "t" or self._sent_head.get(name, ...) != value},
        }
        self._sent_head = head
        if merges:
            news["merges"] = merges
        if start < len(self.grid.t):
            news["curves"] = {
                "t": self.grid.t[start:],
                "step": self.grid.steps[start:],
                "y": {n: c[start:] for n, c in self.grid.curves.items()},
            }
        if self.log.count > self._sent_lines:
            news["log"] = [list(line) for line in self.log.since(self._sent_lines)]
            news["lines"] = self.log.count
        opened = [list(line) for line in self.log.open_lines()]
        if opened != self._sent_open:
            news["open"] = opened
        if self.marks.count > self._sent_marks:
            news["marks"] = self.marks.wire()
            self._sent_marks = self.marks.count
        if (limits := self.limits) != self._sent_limits:
            news["limits"] = self._sent_limits = limits
        whole = self._sent_ranks != self.ranks or self._seq in _SNAPSHOTS
        for rank in sent:
            del self._changed[rank]
        self._sent_columns, self._sent_lines, self._sent_open = len(self.grid.t), self.log.count, opened
        self._merges, self._sent_ranks = self.grid.merges, self.ranks
        return news, whole

    def row(self, rank: int) -> Row:
        """Return the figures of one rank: live, or final after finish()."""
        track, digits = self.tracks[rank], self.grid.digits
        sample, rates = track.last, self.rates(rank)
        state = self.states[rank] if self.states else sample.state if sample else "starting"
        if rank in self._left:
            state = "left"
        if sample is None:
            return Row(state, "", 0, None, None, None, None, None, 0, (), (None,) * len(self.names))
        return Row(
            state,
            "" if self.states or rank in self._left else sample.waiting_for[:MAX_NAME],
            track.total.steps,
            short(rates.samples_per_s, digits),
            short(rates.comm, digits),
            short(rates.wait, digits),
            short(self._bus(rates), digits),
            short(rates.cpu, digits),
            sample.rss,
            tuple(short(sample.gpu.get(name)) for name in GPU_FIGURES) if sample.gpu else (),
            tuple(logged_value(self.logged[rank].get(name)) for name in self.names),
        )

    def rates(self, rank: int) -> Rates:
        """Return the rates of a rank over the last second, after the cell over all of it."""
        track = self.tracks[rank]
        if self.states is None and rank in self._left:
            return Rates()
        return track.rates() if self.states is None else track.overall()

    def _bus(self, rates: Rates) -> float | None:
        """Return the bus bandwidth of one rank in GB/s."""
        return None if rates.gbps is None else bus_factor(max(1, len(self._present))) * rates.gbps

    @property
    def slow(self) -> dict[str, list[float | None]]:
        """The stragglers, each with its ``Slow``; after finish() those at the end of the cell."""
        return {str(rank): [short(value) for value in slow] for rank, slow in sorted(self._stragglers.slow.items())}

    def totals(self) -> Message:
        """Return the figures of all ranks together: the sum of speeds, the communication, means of logged values."""
        rates = {rank: self.rates(rank) for rank in self._present}
        samples = [r.samples_per_s for r in rates.values() if r.samples_per_s is not None]
        return {
            "samples_per_s": short(sum(samples)) if samples else None,
            "exposed": short(self.communication.exposed),
            "overlapped": short(self.communication.overlapped),
            "bus": short(self.bus_gbps),
            "step": max((track.total.steps for track in self.tracks.values()), default=0),
            "logged": [self._mean_logged(name) for name in self.names],
        }

    @property
    def bus_gbps(self) -> float | None:
        """The bus bandwidth of all ranks in GB/s."""
        return None if self.communication.bus is None else self.communication.bus / GB

    def _mean_logged(self, name: str) -> float | str | None:
        """Return the mean of the latest values; if one is not finite, what it is and from which step on."""
        value = mean([_number(logged.get(name)) for logged in self.logged.values()])
        samples = [track.last for track in self.tracks.values() if track.last is not None]
        alarms = [alarm for sample in samples if (alarm := sample.not_finite.get(name)) and alarm.is_latest]
        if value is None or math.isfinite(value) or not alarms:
            return logged_value(value)
        first = min(alarms, key=lambda alarm: alarm.step)
        return f"{units.not_finite(first.value)} since step {first.step}"

    def _head(self) -> Message:
        if self.states is None and self.seconds - self._judged >= 1.0:
            self._judged = self.seconds
            self._judge(over=False)
        return {
            "t": round(self.seconds, 2),
            "began": self.began,
            "names": self.names[:],
            "unnamed": self.unnamed,
            "slow": self.slow,
            "wait": "" if self.states else self.wait,
            "size": None if self.states or self.size is None else list(self.size),
            "totals": self.totals(),
        }

    def _learn(self, logged: Mapping[str, float]) -> None:
        """Record the names of logged values in the order of their appearance, up to a limit."""
        if len(logged) > len(self.names) or any(name not in self.names for name in logged):
            new = [name for name in logged if name not in self.names]
            room = [name for name in new if len(name) <= MAX_NAME][: MAX_NAMES - len(self.names)]
            self.names += room
            self.unnamed = max(self.unnamed, len(new) - len(room))

    def _due(self, *, late: bool) -> bool:
        """Return whether to close a column: once all ranks have sent a sample, or a little later without some."""
        return (late or len(self._fresh) == len(self._present)) and self.grid.due(self.seconds, late=late)

    def _column(self) -> None:
        rates = [self.rates(rank) for rank in self.ranks]
        column: dict[str, list[float | None]] = {
            SAMPLES: [r.samples_per_s for r in rates],
            BUS: [self._bus(r) for r in rates],
            COMM: [None if r.comm is None else 100 * r.comm for r in rates],
        }
        for name in self.names:
            column[VALUE + name] = [_number(self.logged[rank].get(name)) for rank in self.ranks]
        if len(self.ranks) <= FEW:
            column |= self._ends()
        self.grid.add(self.seconds, column, max(track.total.steps for track in self.tracks.values()))
        self._fresh.clear()

    def _ends(self) -> dict[str, list[float | None]]:
        """Return the curves of the ends of ranges in this column; of names whose values differ within it."""
        ranges = [self.tracks[rank].pop_ranges() for rank in self.ranks]
        ends: dict[str, list[float | None]] = {}
        for name in self.names:
            if any(name in of_rank for of_rank in ranges):
                for place, prefix in enumerate((LOW, HIGH)):
                    ends[prefix + name] = [of_rank[name][place] if name in of_rank else None for of_rank in ranges]
        return ends


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def logged_value(value: object) -> float | str | None:
    """Return a number with six digits; one that JSON cannot represent as text."""
    number = _number(value)
    if number is None or not math.isfinite(number):
        return None if number is None else str(number)
    return float(f"{number:.6g}")


MAX_LINES = 200
MAX_WIDTH = 400
MAX_TEXT = 64 * 1024
MAX_OPEN = 4 * 1024

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class LogLine(NamedTuple):
    """A line of one rank."""

    rank: int
    stream: str
    text: str


class LogTail:
    """The last lines of all ranks in the order of arrival; ``count`` includes the dropped ones."""

    def __init__(self) -> None:
        self.count = 0
        self.lines: deque[LogLine] = deque(maxlen=MAX_LINES)
        self._open: dict[tuple[int, str], str] = {}

    def feed(self, rank: int, stream: str, text: str) -> None:
        """Append text; of a flood only the end is processed."""
        if len(text) > MAX_TEXT:
            self.count += text.count("\n", 0, len(text) - MAX_TEXT)
            text = text[-MAX_TEXT:]
            self._open.pop((rank, stream), None)
        *whole, rest = (self._open.pop((rank, stream), "") + text).split("\n")
        for line in whole:
            self.count += 1
            self.lines.append(LogLine(rank, stream, clean(line)))
        if rest:
            self._open[rank, stream] = rest[-MAX_OPEN:]

    def open_lines(self) -> list[LogLine]:
        """Return unfinished lines: a progress bar, a prompt."""
        return [LogLine(rank, stream, clean(text)) for (rank, stream), text in self._open.items()]

    def since(self, count: int) -> list[LogLine]:
        """Return the lines after the first ``count``, as far as they are kept."""
        fresh = min(self.count - count, len(self.lines))
        return list(self.lines)[len(self.lines) - fresh :]


def clean(line: str) -> str:
    r"""Return a line as a terminal would show it: after the last ``\r``, without codes, cut to a width."""
    line = _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2]
    line = _CONTROLS.sub("", line.expandtabs(4))
    return line if len(line) <= MAX_WIDTH else line[: MAX_WIDTH - 1] + "…"


def curves_of(board: Board, most: int = 60) -> dict[str, tuple[list[float], list[float | None]]]:
    """Return each curve's seconds and the means of its ranks, ``most`` points at most.

    Example: ``curves_of(board)["log:loss"]`` is ``([0.2, 0.4], [0.7, 0.5])``.
    """
    every = max(1, -(-len(board.grid.t) // most))
    return {
        name: (board.grid.t[::every], [mean(column) for column in columns[::every]])
        for name, columns in board.grid.curves.items()
        if any(value is not None for column in columns for value in column)
    }


def summary(board: Board) -> dict[str, Any]:
    """Return the figures of the cell, JSON-able; None for figures without a measurement.

    Returns
    -------
    dict
        ``ranks``; ``seconds``; ``steps`` (the maximum over the ranks);
        ``samples_per_s`` {"total": ..., "per_rank": {"0": ...}};
        ``exposed_share`` and ``overlapped_share`` (0..1) of communication, and ``bus_gbps``: see definitions.py;
        ``slow`` {"2": [its own time as a multiple of the others', share of their time spent waiting]}, at the end;
        ``marks`` [[seconds, kind, label], ...]: ranks that died, joined or left, and lost steps;
        ``logged`` {name: mean of the ranks' last values}; ``logged_per_rank`` {name: {"0": ...}}.
    """
    rates = [track.overall() for track in board.tracks.values()]
    speeds = [r.samples_per_s for r in rates]
    measured = [speed for speed in speeds if speed is not None]
    return {
        "ranks": list(board.ranks),
        "seconds": board.seconds,
        "steps": board.totals()["step"],
        "samples_per_s": {
            "total": sum(measured) if measured else None,
            "per_rank": {str(rank): speed for rank, speed in zip(board.ranks, speeds, strict=True)},
        },
        "exposed_share": board.communication.exposed,
        "overlapped_share": board.communication.overlapped,
        "bus_gbps": board.bus_gbps,
        "slow": board.slow,
        "marks": board.marks.wire(),
        "logged": dict(zip(board.names, board.totals()["logged"], strict=True)),
        "logged_per_rank": {
            name: {str(rank): logged_value(values[name]) for rank, values in board.logged.items() if name in values}
            for name in board.names
        },
    }
