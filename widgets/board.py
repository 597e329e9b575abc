"""Dashboard state: what every rank is doing, as messages for the browser. Pure but for its clock.

Terms.
  row        the numbers of one rank, as the table shows them
  snapshot   everything there is to show; whoever has it needs nothing from before
  increment  what is new since the last increment; rows are absolute, curves and log lines are appended
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hvd_kernel.diagnosis.stragglers import Stragglers
from hvd_kernel.protocol.messages import GPU_FIGURES, MetricsSample
from hvd_kernel.widgets.limits_window import LimitsWindow
from hvd_kernel.widgets.log_tail import LogTail
from hvd_kernel.widgets.marks import Kind, Marks
from hvd_kernel.widgets.series import FEW, Grid, Rates, Track, mean, short

ROWS_EVERY = 5
"""Of many ranks rows travel with each fifth increment, once a second: what changes in a table has a page lay it out."""

MOST_ROWS = 64
"""Of an increment: of more ranks those whose row was sent longest ago go first."""

MAX_NAMES = 8
MAX_NAME = 48
SAMPLES, GBPS, COMM = "samples/s", "allreduce GB/s", "communication %"

_MENDING = frozenset(ROWS_EVERY**i for i in range(14))

Message = dict[str, Any]
"""JSON-able; the keys are those of ``Board.snapshot`` and ``Board.increment``."""


class Row(NamedTuple):
    """One rank; on the wire a list in this order (widgets/js/messages.js has the same table)."""

    state: str
    waiting_for: str
    step: int
    samples_per_s: float | None
    comm: float | None
    wait: float | None
    gbps: float | None
    cpu: float | None
    rss: int
    gpu: tuple[float | None, ...]  # in the order of GPU_FIGURES; () without a device
    logged: tuple[float | str | None, ...]  # in the order of Board.names; "nan", "inf" as text


class Size(NamedTuple):
    """The number of ranks, where the panel can change it; on the wire a list in this order (widgets/js/head.js)."""

    n: int
    wanted: int | None = None  # another one, until it is there
    note: str = ""  # how far that is, or why it is not there


class Board:
    """All ranks of one cell. Not thread-safe: its owner holds a lock."""

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
        self.other_ranks = ""  # who shares the host with them, in one sentence
        self.size: Size | None = None  # where the number of ranks can be changed
        self._left: set[int] = set()  # ranks that have left the cell
        self.grid = Grid(len(self.ranks), limit=max(60, min(300, 6000 // max(1, len(self.ranks)))))
        self.tracks = {rank: Track((before or {}).get(rank)) for rank in self.ranks}
        self.logged: dict[int, dict[str, float]] = {rank: {} for rank in self.ranks}
        self._stragglers = Stragglers(self.ranks)
        self._limits = limits or LimitsWindow()
        self._said: list[str] = []  # what limits the run
        self._judged = 0.0
        self._sent_said: list[str] = []
        self._sent_head: Message = {}
        self._clock = clock
        self._start = clock()
        self._seconds: float | None = None
        self._changed: dict[
            int, None
        ] = {}  # ranks with news since the last increment, those first that have waited longest
        self._fresh: set[int] = set()  # ranks with a sample since the last column
        self._seq = self._sent_columns = self._sent_lines = self._sent_marks = self._merges = 0
        self._sent_open: list[list[Any]] = []
        self._sent_ranks = self.ranks

    @property
    def seconds(self) -> float:
        """Since the board was made; stands still after finish()."""
        return self._clock() - self._start if self._seconds is None else self._seconds

    def feed(self, sample: MetricsSample) -> None:
        """Take a sample of a known rank; others are ignored."""
        track = self.tracks.get(sample.rank)
        if track is None or sample.rank in self._left or self.states is not None:
            return
        if sample.rank in self._fresh and self._due(late=False):  # a new round of telemetry begins: close the last one
            self._column()
        track.add(sample, self.seconds)
        self._stragglers.feed(sample)
        self._limits.feed(sample)
        self.logged[sample.rank] = track.logged()
        self._learn(self.logged[sample.rank])
        self._changed[sample.rank] = None
        self._fresh.add(sample.rank)
        if self._due(late=len(self._fresh) < len(self._there)):
            self._column()

    def warn(self, text: str) -> None:
        """Show a warning beside what limits the run."""
        self.warnings.append(text)

    def mark(self, kind: Kind, label: str) -> None:
        """Mark this moment on the time axis."""
        self.marks.add(self.seconds, kind, label)

    def join(self, rank: int) -> None:
        """Have a rank that is new in the cell, or in the place of one that was there."""
        if rank not in self.tracks:
            self.ranks = (*self.ranks, rank)
            self.grid.widen()
        if rank not in self.tracks or rank in self._left:
            self.tracks[rank], self.logged[rank] = Track(None), {}
        self._left.discard(rank)
        self._stragglers = Stragglers(self._there)
        self._changed[rank] = None

    def leave(self, rank: int) -> None:
        """Have a rank no more: its row stays."""
        self._left.add(rank)
        self._fresh.discard(rank)
        self._stragglers = Stragglers(self._there)
        self._changed[rank] = None

    @property
    def _there(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self._left]

    def finish(self, states: Mapping[int, str]) -> None:
        """Freeze: from now on rows hold each rank's final state and its means over the cell."""
        if self.states is not None:
            return
        if any(track.last for track in self.tracks.values()):
            self._column()
        self._seconds = self.seconds
        self.states = {rank: states.get(rank, "done") for rank in self.ranks}
        self._said = self._limits.bottleneck(self._there, self._stragglers.slow, over=True).lines
        self._changed = dict.fromkeys(self.ranks)

    def snapshot(self) -> Message:
        """Everything, as of now."""
        return {
            "seq": self._seq,
            "title": self.title,
            "ranks": list(self.ranks),
            "finished": self.states is not None,
            "rows": {str(rank): list(self.row(rank)) for rank in self.ranks},
            **self._head(),
            "curves": {"t": self.grid.t[:], "y": {name: columns[:] for name, columns in self.grid.curves.items()}},
            "log": [list(line) for line in self.log.lines],
            "lines": self.log.count,
            "open": [list(line) for line in self.log.open_lines()],
            "marks": self.marks.wire(),
            "limits": self.limits,
        }

    @property
    def limits(self) -> list[str]:
        """What limits the run, in sentences that change once in a second at most, and who shares its host."""
        if self.states is None and self.seconds - self._judged >= 1.0:
            self._judged = self.seconds
            self._said = self._limits.bottleneck(self._there, self._stragglers.slow, over=False).lines
        return [*self.warnings, *self._said, *([self.other_ranks] if self.other_ranks else [])]

    def increment(self) -> tuple[Message, bool]:
        """Return the news since the last call, and whether a snapshot must follow.

        It follows a change of the ranks, and calls 1, 5, 25, ...: so rare, they mend what a view missed while it was
        loading. What has not changed is left out. Where columns were merged since, the page merges its own in the same
        way (``merges``).
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
            news["curves"] = {"t": self.grid.t[start:], "y": {n: c[start:] for n, c in self.grid.curves.items()}}
        if self.log.count > self._sent_lines:
            news["log"] = [list(line) for line in self.log.since(self._sent_lines)]
            news["lines"] = self.log.count
        opened = [list(line) for line in self.log.open_lines()]
        if opened != self._sent_open:
            news["open"] = opened
        if self.marks.count > self._sent_marks:
            news["marks"] = self.marks.wire()
            self._sent_marks = self.marks.count
        if (said := self.limits) != self._sent_said:
            news["limits"] = self._sent_said = said
        whole = self._sent_ranks != self.ranks or self._seq in _MENDING
        for rank in sent:
            del self._changed[rank]
        self._sent_columns, self._sent_lines, self._sent_open = len(self.grid.t), self.log.count, opened
        self._merges, self._sent_ranks = self.grid.merges, self.ranks
        return news, whole

    def row(self, rank: int) -> Row:
        """Return the numbers of one rank: live, or final after finish()."""
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
            short(rates.gbps, digits),
            short(rates.cpu, digits),
            sample.rss,
            tuple(short(sample.gpu.get(name)) for name in GPU_FIGURES) if sample.gpu else (),
            tuple(logged_value(self.logged[rank].get(name)) for name in self.names),
        )

    def rates(self, rank: int) -> Rates:
        """Over the last second while the cell runs, over the whole cell afterwards."""
        track = self.tracks[rank]
        if self.states is None and rank in self._left:
            return Rates()
        return track.rates() if self.states is None else track.overall()

    @property
    def slow(self) -> dict[str, list[float | None]]:
        """The ranks that keep the others waiting, each with its ``Slow``; after finish() those that did at the end."""
        return {str(rank): [short(value) for value in slow] for rank, slow in sorted(self._stragglers.slow.items())}

    def totals(self) -> Message:
        """Return the figures of all ranks together: sums of speed, means of shares and of logged values."""
        rates = {rank: self.rates(rank) for rank in self._there}
        samples = [r.samples_per_s for r in rates.values() if r.samples_per_s is not None]
        return {
            "samples_per_s": short(sum(samples)) if samples else None,
            "comm": short(mean([r.comm for r in rates.values()])),
            "gbps": short(mean([r.gbps for r in rates.values()])),
            "step": max((track.total.steps for track in self.tracks.values()), default=0),
            "logged": [logged_value(mean([_number(v.get(name)) for v in self.logged.values()])) for name in self.names],
        }

    def _head(self) -> Message:
        return {
            "t": round(self.seconds, 2),
            "names": self.names[:],
            "unnamed": self.unnamed,
            "slow": self.slow,
            "wait": "" if self.states else self.wait,
            "size": None if self.states or self.size is None else list(self.size),
            "totals": self.totals(),
        }

    def _learn(self, logged: Mapping[str, float]) -> None:
        """Remember the names of logged values in the order of their appearance, a bounded number of them."""
        if len(logged) > len(self.names) or any(name not in self.names for name in logged):
            new = [name for name in logged if name not in self.names]
            room = [name for name in new if len(name) <= MAX_NAME][: MAX_NAMES - len(self.names)]
            self.names += room
            self.unnamed = max(self.unnamed, len(new) - len(room))

    def _due(self, *, late: bool) -> bool:
        """Whether to close a column: as soon as all ranks have spoken, a little later without those that have not."""
        return (late or len(self._fresh) == len(self._there)) and self.grid.due(self.seconds, late=late)

    def _column(self) -> None:
        rates = [self.rates(rank) for rank in self.ranks]
        column: dict[str, list[float | None]] = {
            SAMPLES: [r.samples_per_s for r in rates],
            GBPS: [r.gbps for r in rates],
            COMM: [None if r.comm is None else 100 * r.comm for r in rates],
        }
        for name in self.names:
            column[f"log:{name}"] = [_number(self.logged[rank].get(name)) for rank in self.ranks]
        self.grid.add(self.seconds, column)
        self._fresh.clear()


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def logged_value(value: object) -> float | str | None:
    """Return six digits of a number; what JSON has no number for travels as text."""
    number = _number(value)
    if number is None or not math.isfinite(number):
        return None if number is None else str(number)
    return float(f"{number:.6g}")
