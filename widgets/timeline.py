"""A Chrome trace of the core as bars and sums, for ``%hvd timeline``. Pure.

Terms.
  row    a tensor, by its operation and name: "allreduce.grad"; all operations of one kind of a torch group
  bar    the time in a row from a begin event to its end event; an operation's bar contains its steps' bars
  depth  the number of bars around a bar
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hvd_kernel.formatting import units
from hvd_kernel.formatting.operation_names import operation_label

NEGOTIATES = "NEGOTIATE_"
WAITS = {"QUEUE": "in the queue", "WAIT_FOR_DATA": "waiting for data", "ALLOCATE_OUTPUT": "allocating"}
LARGEST = 256 << 20  # bytes of a file that is shown
VIEWERS = "https://ui.perfetto.dev or chrome://tracing"


@dataclass(frozen=True)
class Bar:
    """A bar; times in microseconds since the start of the recording."""

    name: str
    begin: float
    end: float
    depth: int = 0
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def is_operation(self) -> bool:
        """True for an operation, not for its negotiation or a step of it."""
        return self.depth == 0 and not self.name.startswith(NEGOTIATES)


@dataclass
class Recording:
    """The rows of a file, in the order of their first events, and the length of the recording."""

    rows: dict[str, list[Bar]]
    seconds: float

    @property
    def bars(self) -> Iterator[Bar]:
        """The bars of all rows."""
        return (bar for bars in self.rows.values() for bar in bars)


def parse(text: str) -> Recording:
    """Parse a trace; an incomplete one, still being written or whose writer died, up to its last complete event.

    Raises
    ------
    ValueError
        It is not a trace of the core.

    Examples
    --------
    >>> parse('[{"name":"process_name","ph":"M","pid":1,"args":{"name":"allreduce.x"}}').rows
    {}
    """
    events = _events(text)
    names: dict[int, str] = {}
    open_bars: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    rows: dict[str, list[Bar]] = defaultdict(list)
    last = 0.0
    for event in events:
        pid, lane = event["pid"], (event["pid"], event.get("tid", 0))
        last = max(last, event.get("ts", 0.0))
        if event["ph"] == "M" and event["name"] == "process_name":
            names[pid] = event["args"]["name"]
        elif event["ph"] == "B":
            open_bars[lane].append(event)
        elif event["ph"] == "E" and open_bars[lane]:
            kind = open_bars[lane][0]["name"].removeprefix(NEGOTIATES).lower()
            begun = open_bars[lane].pop()
            depth = len(open_bars[lane])
            bar = Bar(begun["name"], begun["ts"], event["ts"], depth, event.get("args", {}))
            rows[operation_label(names.get(pid, str(pid)), kind)].append(bar)
    for bars in rows.values():
        bars.sort(key=lambda bar: (bar.begin, bar.depth))
    return Recording(dict(rows), last / 1e6)


def _events(text: str) -> list[dict[str, Any]]:
    for whole in (text, text.rstrip().rstrip(",") + "]", text[: max(0, text.rfind("\n{") - 1)].rstrip(",\n ") + "]"):
        try:
            events = json.loads(whole)
        except json.JSONDecodeError:
            continue
        if isinstance(events, list) and all(isinstance(event, dict) and {"ph", "pid"} <= {*event} for event in events):
            return events
    raise ValueError("it is not a timeline: a timeline is a list of events, as hvd.start_timeline writes it")


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the total length that intervals cover together.

    >>> covered([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def summary(recording: Recording) -> str:
    """Return a table: how often each operation ran, its mean time, and the share of the time with such an operation."""
    by_name: dict[str, list[Bar]] = defaultdict(list)
    for bar in recording.bars:
        if bar.is_operation:
            by_name[bar.name].append(bar)
    count = sum(map(len, by_name.values()))
    if not count:
        return f"{units.duration(recording.seconds)}, no operation\n"
    rows = [("operation", "count", "bytes", "mean", "time", "share")]
    for name, bars in sorted(by_name.items(), key=lambda item: -len(item[1])):
        time = covered((bar.begin, bar.end) for bar in bars) / 1e6
        mean = sum(bar.end - bar.begin for bar in bars) / len(bars) / 1e6
        size = units.decimal_size(sum(bar.args.get("bytes", 0) for bar in bars))
        share = units.percent(time / recording.seconds if recording.seconds else None)
        rows.append((name.lower(), f"{len(bars):,}", size, short(mean), short(time), share))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(
            cell.ljust(width) if not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    head = f"{units.duration(recording.seconds)}, {count:,} operations on {len(recording.rows):,} names"
    return "\n".join([head, *table, _steps(recording)]) + "\n"


def _steps(recording: Recording) -> str:
    """Return the time of each step of the operations, summed over the tensors."""
    sums: dict[str, float] = defaultdict(float)
    for bar in recording.bars:
        if bar.name.startswith(NEGOTIATES):
            sums["negotiating"] += bar.end - bar.begin
        elif bar.depth:
            sums[WAITS.get(bar.name, bar.name)] += bar.end - bar.begin
    parts = [f"{name} {short(time / 1e6)}" for name, time in sorted(sums.items(), key=lambda item: -item[1])]
    return f"summed over tensors: {', '.join(parts)}"


def short(seconds: float) -> str:
    """Return a duration in a readable unit.

    >>> short(0.0000123), short(0.0045), short(2.5)
    ('12.3 us', '4.5 ms', '2.5 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:,.0f} {unit}"
    return f"{seconds * 1e6:.3g} us"


def merged(spans: Iterable[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Return intervals, those closer than ``gap`` joined.

    >>> merged([(0, 1), (1.5, 2), (9, 10)], 1)
    [(0, 2), (9, 10)]
    """
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if joined and begin - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def ticks(seconds: float, most: int = 8) -> list[float]:
    """Return the times of an axis's lines: 1, 2 or 5 times a power of ten apart.

    >>> ticks(1.0, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if seconds <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(seconds / most))
    step = next(power * times for times in (1, 2, 5, 10) if power * times * most >= seconds * (1 - 1e-9))
    return [round(i * step, 12) for i in range(int(seconds / step + 1e-9) + 1)]
