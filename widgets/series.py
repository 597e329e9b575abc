"""Time series: turns samples into rates, curves, and the figures from which the panel derives what limits a run.

Pure: no clock, no widget, no thread.

Terms.
  track   one rank's counters since the start of the cell, and its rates over the last second
  grid    the curves of all ranks over one time axis, of limited size: when it is full, neighbours are averaged and its
          columns become twice as wide
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from hvd_kernel.diagnosis.limits_of_run import Bottleneck, Figures, Possible, bottleneck
from hvd_kernel.diagnosis.stragglers import Slow
from hvd_kernel.protocol.messages import MetricsSample

WINDOW_S = 1.0
"""Window of the live rates."""

FIRST_COLUMN_S = 0.2
"""Width of a column before the first merge: the period of telemetry."""

VALUE, LOW, HIGH = "log:", "low:", "high:"
"""Prefixes of the curves of a logged name: its value, and the least and greatest one in each column, if they differ."""

FEW = 8
"""More ranks than this are drawn as a heat map, which needs fewer digits."""

EXACT = 1e15
"""Larger numbers are sent as powers of ten."""

NS = 1e-9
PAIR = 2  # a rate needs two samples

N = TypeVar("N", int, float)
Pair = tuple[float | None, float | None]


class Counters(NamedTuple):
    """Growth since the first sample of the cell."""

    steps: int = 0  # of a new rank including those before its first sample
    samples: int = 0
    bytes: int = 0
    comm_ns: int = 0
    wait_ns: int = 0
    cpu_s: float = 0.0


Moment = tuple[float, Counters]
"""Seconds, and the growth until then."""


@dataclass(frozen=True)
class Rates:
    """Rates of one rank; None before there are enough samples."""

    samples_per_s: float | None = None
    comm: float | None = None  # share of time in operations, 0..1, overlapped with computing or not
    wait: float | None = None  # share of time the rank's own code was blocked in them, 0..1
    gbps: float | None = None  # algorithm bandwidth: bytes of tensors per nanosecond spent in operations
    cpu: float | None = None  # percent of one core


class Track:
    """The samples of one rank. ``before`` is its last sample of an earlier cell, if there is one."""

    def __init__(self, before: MetricsSample | None = None) -> None:
        self.last: MetricsSample | None = None
        self._before = before
        self.total = Counters()
        self._recent: deque[tuple[float, Counters]] = deque()
        self._credited = 0  # blocked nanoseconds counted before the rank reported them
        self._first = 0.0
        self._trained: tuple[Moment, Moment] | None = None  # before its first step or sample, after its last one
        self._ranges: dict[str, tuple[float, float]] = {}

    def add(self, sample: MetricsSample, elapsed: float = 0.0) -> None:
        """Add a sample, ``elapsed`` seconds after the start of the cell; one not newer than the last is ignored."""
        if self.last is None and self._before is not None and elapsed > 0:
            # Counters do not change between cells: the cell starts with the counters at the end of the last one.
            self._append(replace(self._before, time=sample.time - elapsed, state="idle", logged={}))
        self._append(sample)

    def logged(self) -> dict[str, float]:
        """Return the latest values logged in this cell; some may be NaN or infinite."""
        if self.last is None:
            return {}
        not_finite = {name: float(alarm.value) for name, alarm in self.last.not_finite.items() if alarm.is_latest}
        return {**self.last.logged, **not_finite}

    def pop_ranges(self) -> dict[str, tuple[float, float]]:
        """Return the least and the greatest value of each name since the last call; names with one value are absent."""
        taken, self._ranges = self._ranges, {}
        return {name: ends for name, ends in taken.items() if ends[0] < ends[1]}

    def _append(self, sample: MetricsSample) -> None:
        last = self.last
        if last is None:
            self._first = sample.time
            self.total = Counters(_growth(self._before.step if self._before else 0, sample.step))
        elif sample.time <= last.time:
            return
        else:
            self._grow(last, sample)
        self.last = sample
        for name, value in sample.logged.items():
            self._ranges[name] = _joined(self._ranges.get(name), (value, value))
        for name, ends in sample.ranges.items():
            self._ranges[name] = _joined(self._ranges.get(name), ends)
        self._recent.append((sample.time, self.total))
        while len(self._recent) > PAIR and self._recent[1][0] <= sample.time - WINDOW_S:
            self._recent.popleft()

    def _grow(self, last: MetricsSample, sample: MetricsSample) -> None:
        total = self.total
        self.total = Counters(
            total.steps + _growth(last.step, sample.step),
            total.samples + _growth(last.samples, sample.samples),
            total.bytes + _growth(last.bytes, sample.bytes),
            total.comm_ns + _growth(last.comm_ns, sample.comm_ns),
            total.wait_ns + self._waited(last, sample),
            total.cpu_s + _growth(last.cpu_s, sample.cpu_s),
        )
        if trains(last, sample):
            first = self._trained[0] if self._trained else (last.time, total)
            self._trained = first, (sample.time, self.total)

    def _waited(self, last: MetricsSample, sample: MetricsSample) -> int:
        """Return the blocked time; a rank reports it only after the wait, so a wait in progress is credited."""
        grown = _growth(last.wait_ns, sample.wait_ns)
        if grown == 0 and last.state == sample.state == "collective" and last.ops == sample.ops:
            grown = round((sample.time - last.time) / NS)
            self._credited += grown
            return grown
        paid = min(grown, self._credited)
        self._credited -= paid
        return grown - paid

    def rates(self) -> Rates:
        """Return the rates over the last second."""
        if len(self._recent) < PAIR:
            return Rates()
        (t0, a), (t1, b) = self._recent[0], self._recent[-1]
        return _rates(t1 - t0, a, b)

    def overall(self) -> Rates:
        """Return the rates from the first to the last training step; of a cell without steps, over all of it."""
        if self.last is None or self.last.time <= self._first:
            return Rates()
        (t0, a), (t1, b) = self._trained or ((self._first, Counters()), (self.last.time, self.total))
        return _rates(t1 - t0, a, b)


def _joined(a: tuple[float, float] | None, b: tuple[float, float]) -> tuple[float, float]:
    return b if a is None else (min(a[0], b[0]), max(a[1], b[1]))


def _growth(before: N, after: N) -> N:
    """Return the growth of a counter; one that decreased was reset (a new engine) and counts from zero."""
    return after - before if after >= before else after


def trains(before: MetricsSample, after: MetricsSample) -> bool:
    """Return whether a rank has taken a step, or counted samples, between two samples."""
    return after.step != before.step or after.samples != before.samples


def _rates(seconds: float, a: Counters, b: Counters) -> Rates:
    comm_ns = b.comm_ns - a.comm_ns
    return Rates(
        samples_per_s=(b.samples - a.samples) / seconds if b.samples or b.steps else None,
        comm=min(1.0, comm_ns * NS / seconds),
        wait=min(1.0, (b.wait_ns - a.wait_ns) * NS / seconds),
        gbps=(b.bytes - a.bytes) / comm_ns if comm_ns > 0 else None,
        cpu=100.0 * (b.cpu_s - a.cpu_s) / seconds,
    )


Column = Mapping[str, Sequence[float | None]]
"""Curve name -> one value per rank."""


class Grid:
    """Curves over one time axis, of limited size."""

    def __init__(self, ranks: int, limit: int = 300) -> None:
        self.ranks = ranks
        self.limit = limit
        self.width = FIRST_COLUMN_S
        self.t: list[float] = []
        self.steps: list[int] = []  # optimizer steps at the end of each column
        self.curves: dict[str, list[list[float | None]]] = {}  # name -> column -> rank
        self.merges = 0

    @property
    def digits(self) -> int:
        """Significant digits of the figures: three for many ranks."""
        return 4 if self.ranks <= FEW else 3

    def due(self, t: float, *, late: bool) -> bool:
        """Return whether a column at ``t`` is due; for a late rank, wait half a width longer."""
        since = t - self.t[-1] if self.t else t
        return since >= self.width * 1.5 if late else not self.t or since >= self.width * 0.99

    def add(self, t: float, column: Column, step: int = 0) -> None:
        """Append a column; a new curve has gaps before it."""
        if len(self.t) >= self.limit:
            self._merge()
        for name in column:
            self.curves.setdefault(name, [[None] * self.ranks for _ in self.t])
        self.t.append(round(t, 2))
        self.steps.append(max(step, self.steps[-1] if self.steps else 0))
        for name, columns in self.curves.items():
            columns.append([short(v, self.digits) for v in column.get(name, [None] * self.ranks)])

    def widen(self) -> None:
        """Add a rank, with gaps so far."""
        self.ranks += 1
        for columns in self.curves.values():
            for column in columns:
                column.append(None)

    def _merge(self) -> None:
        self.merges += 1
        self.width *= 2
        self.t, self.steps = self.t[1::2], self.steps[1::2]
        merged: dict[str, list[list[float | None]]] = {}
        for name, columns in self.curves.items():
            if name not in merged:  # the ends of ranges are merged with their values
                merged[name] = _pairs(columns, lambda pair: short(mean(pair), self.digits))
            if name.startswith(VALUE) and self.ranks <= FEW:
                for prefix, end in ((LOW, min), (HIGH, max)):
                    curve = prefix + name.removeprefix(VALUE)
                    merged[curve] = _pairs(ends_of(self.curves.get(curve), columns), partial(_end, end))
        self.curves = merged


def ends_of(
    ends: Sequence[Sequence[float | None]] | None, columns: Sequence[Sequence[float | None]]
) -> list[list[float | None]]:
    """Return the ends of the ranges of a curve's columns; a range of one value has no end of its own."""
    if ends is None:
        return [list(column) for column in columns]
    return [
        [value if end is None else end for end, value in zip(*pair, strict=True)]
        for pair in zip(ends, columns, strict=True)
    ]


def _pairs(columns: list[list[float | None]], join: Callable[[Pair], float | None]) -> list[list[float | None]]:
    """Join the values of neighbours by rank; a last column without a neighbour is dropped."""
    return [[join(pair) for pair in zip(a, b, strict=True)] for a, b in zip(columns[::2], columns[1::2], strict=False)]


def _end(end: Callable[[Iterable[float]], float], pair: Pair) -> float | None:
    present = [value for value in pair if value is not None]
    return end(present) if present else None


def short(value: float | None, digits: int = 4) -> float | None:
    """Return a value for the wire: with significant digits, without ".0"; None for one that cannot be drawn."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < EXACT else rounded


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values other than None; None if there are none."""
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present else None


SPAN_S = 10
"""Window of the figures while the cell runs."""

SOONEST_S = 3.0
"""Shortest window with a verdict while the cell runs: the first seconds are setup."""

SHORTEST_S = 0.5


class LimitsWindow:
    """Samples of the ranks, from which their figures over the last seconds, or over the training, are derived."""

    def __init__(self, possible: Possible = lambda _bytes: None, cores: int = 0) -> None:
        self._possible = possible
        self._cores = cores
        self._recent: dict[int, deque[MetricsSample]] = {}
        self._first: dict[int, MetricsSample] = {}
        self._last: dict[int, MetricsSample] = {}
        self._trained: dict[int, tuple[MetricsSample, MetricsSample]] = {}  # before the first step, after the last one

    def feed(self, sample: MetricsSample) -> None:
        """Add a sample; after a reset of the communicator, or of the rank, counting starts again."""
        last = self._last.get(sample.rank)
        if last is None or sample.ops < last.ops or sample.wait_ns < last.wait_ns or sample.ran_ns < last.ran_ns:
            self._first[sample.rank] = sample
            self._recent[sample.rank] = deque([sample], maxlen=SPAN_S + 1)
            self._trained.pop(sample.rank, None)
        elif trains(last, sample):
            first = self._trained[sample.rank][0] if sample.rank in self._trained else last
            self._trained[sample.rank] = first, sample
        self._last[sample.rank] = sample
        recent = self._recent[sample.rank]
        if sample.time - recent[-1].time >= 1.0:
            recent.append(sample)

    def figures(self, ranks: Iterable[int], *, over: bool) -> dict[int, Figures]:
        """Return the figures of the last seconds; empty if they are too few.

        ``over``: from the first to the last training step of the run, or, without steps, of all of it.
        """
        present = [rank for rank in ranks if rank in self._last]
        if not over:
            return _over_spans({rank: (self._recent[rank][0], self._last[rank]) for rank in present}, SOONEST_S)
        whole = _over_spans({rank: (self._first[rank], self._last[rank]) for rank in present}, SHORTEST_S)
        trained = {rank: self._trained[rank] for rank in present if rank in self._trained}
        return (_over_spans(trained, SHORTEST_S) if len(trained) == len(present) else {}) or whole

    def bottleneck(self, figures: Mapping[int, Figures], slow: Mapping[int, Slow]) -> Bottleneck:
        """Return what limits the run of these figures."""
        return bottleneck(figures, slow, self._possible, self._cores)


def _over_spans(spans: Mapping[int, tuple[MetricsSample, MetricsSample]], shortest: float) -> dict[int, Figures]:
    """Return the figures of each rank between two samples; empty if a rank has less than ``shortest`` seconds."""
    if any(after.time - before.time < shortest for before, after in spans.values()):
        return {}
    return {rank: _figures(*span) for rank, span in spans.items()}


def _figures(before: MetricsSample, after: MetricsSample) -> Figures:
    has_times = after.ran_ns > 0  # 0 if the system does not report processor times
    return Figures(
        after.time - before.time,
        (after.wait_ns - before.wait_ns) * NS,
        (after.comm_ns - before.comm_ns) * NS,
        after.bytes - before.bytes,
        after.ops - before.ops,
        (after.ran_ns - before.ran_ns) * NS if has_times else None,
        (after.queued_ns - before.queued_ns) * NS if has_times else None,
        after.cpu_s - before.cpu_s,
        bool(after.gpu),
        after.options,
    )
