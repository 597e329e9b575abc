"""SVG picture of the dashboard, without script: for saved notebooks, nbconvert's pages, front ends without widgets.

Pure: turns a snapshot (``Board.snapshot``) into text. All text from ranks is escaped.
"""

# ruff: noqa: PLR2004 - drawing is numbers: sizes, weights, positions

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import wrap
from typing import Any
from xml.sax.saxutils import escape

from hvd_kernel.formatting import units
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.protocol.messages import GPU_FIGURES
from hvd_kernel.widgets.board import Mark, Message, Row
from hvd_kernel.widgets.definitions import BUS, COMM, EXPOSED, OVERLAPPED, SAMPLES, STEP
from hvd_kernel.widgets.series import HIGH, LOW, VALUE, ends_of
from hvd_kernel.widgets.step_axis import axis_of

WIDTH = 860
MARGIN = 16
PLOT_HEIGHT = 118
ROW_HEIGHT = 22
FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"
MAX_LOGGED = 3
LIMIT_HEIGHT = 17
LIMIT_WIDTH = 125  # characters of a line about what limits the run
SHORTEST_HEAD = 6  # characters: no column is narrower
FEW = ("#1d6aae", "#ca8502", "#ba0c7f", "#6e8dfb", "#895e0d", "#a089a8", "#890cf7", "#e7235b")
"""A palette that colour-blind users can distinguish (tests/unit/widgets/test_colours.py)."""

ENDED_BADLY = frozenset({"failed", "dead", "interrupted"})
STATES = {
    "compute": "computing",
    "waiting": "waiting for data, disk or sleep",
    "collective": "in collective",
    "prompt": "at a prompt",
}
INK, SOFT, RULE, GRID, GREEN, RED, BLUE, AMBER = (
    "#1d2129",
    "#6b7280",
    "#dfe2e7",
    "#eceef1",
    "#2f9e78",
    "#c9484e",
    "#4c7bd9",
    "#b97c12",
)
MARKS = {"died": "#d1555b", "joined": GREEN, "left": "#7d8590", "lost": AMBER, "not finite": "#d1555b"}
MARK_ROWS = 4  # of labels, one below the other
UTIL, POWER = GPU_FIGURES.index("util"), GPU_FIGURES.index("power")
_FORBIDDEN = re.compile(
    "[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class TableColumn:
    """A column of the table: where its text ends (or begins), its head, and its text of a row."""

    x: float
    head: str
    text: Callable[[Row], str]
    anchor: str = "end"


def render(snapshot: Message) -> str:
    """Return the picture of a snapshot."""
    board = _Picture(snapshot)
    figures = board.figures()
    body = [board.header(), figures]
    y = 104.0 if figures else 52.0
    limits = board.limits(y)
    body += limits
    y += LIMIT_HEIGHT * len(limits) + 8 * bool(limits)
    charts = board.charts(y)
    if charts:
        body.append(charts)
        y += PLOT_HEIGHT + 60
    body.append(board.table(y))
    height = y + ROW_HEIGHT * (len(board.rows) + 1) + 14
    return framed(f"hvd dashboard: {len(board.rows)} ranks", height, "".join(body))


def framed(label: str, height: float, body: str) -> str:
    """Return a picture in a frame, as wide as its container; directly in a page at most WIDTH.

    JupyterLab and nbconvert show it as an image, and would not shrink one with a fixed width.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="100%" role="img"'
        f' aria-label="{escaped(label)}" font-family="{FONT}" font-size="12" fill="{INK}"'
        f' style="max-width:{WIDTH}px;height:auto;font-variant-numeric:tabular-nums">'
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:.0f}" rx="8" fill="#fff" stroke="{RULE}"/>'
        f"{body}</svg>"
    )


def colour(index: int, count: int) -> str:
    """Return a rank's colour: a small palette, or a ramp for many ranks (widgets/js/colours.js has the same)."""
    if count <= len(FEW):
        return FEW[index]
    return f"hsl({round(265 - 120 * index / (count - 1))},48%,{60 if index % 2 else 52}%)"


class _Picture:
    def __init__(self, snapshot: Message) -> None:
        self.snapshot = snapshot
        self.names: list[str] = snapshot["names"]
        self.rows = {rank: Row(*snapshot["rows"][str(rank)]) for rank in snapshot["ranks"]}

    def header(self) -> str:
        bad = [rank for rank, row in self.rows.items() if row.state in ENDED_BADLY]
        word, tone = ("finished", GREEN) if self.snapshot["finished"] else ("running", BLUE)
        if bad:
            word, tone = f"{self.rows[bad[0]].state} on {rank_list(bad)}", RED
        right = units.duration(self.snapshot["t"])
        if self.snapshot["began"] is not None:
            right = f"first step after {units.duration(self.snapshot['began'])} · {right}"
        if self.snapshot["finished"]:
            right = f"means over the {'training' if self.snapshot['totals']['step'] else 'cell'} · {right}"
        return (
            text(MARGIN, 27, _cut(self.snapshot["title"], 60), weight=600, size=13)
            + text(WIDTH - MARGIN, 27, f"{word} · {right}", SOFT, anchor="end")
            + f'<rect x="{MARGIN}" y="36" width="{WIDTH - 2 * MARGIN}" height="1.5" rx=".75" fill="{tone}"/>'
        )

    def figures(self) -> str:
        totals = self.snapshot["totals"]
        measured = (
            (SAMPLES, totals["samples_per_s"] or None, units.number),
            (STEP, totals["step"] or None, "{:,}".format),
            (EXPOSED, totals["exposed"], units.percent),
            (OVERLAPPED, totals["overlapped"], units.percent),
            (BUS, totals["bus"], units.number),
        )
        logged = list(zip(self.names, totals["logged"], strict=True))[:MAX_LOGGED]
        figures = [
            (label, format_value(value)) for label, value, format_value in measured if value is not None
        ]  # others were not measured
        figures += [(_cut(name, 16), units.metric(value)) for name, value in logged]
        pitch = min(132.0, (WIDTH - 2 * MARGIN) / max(1, len(figures)))
        return "".join(
            text(MARGIN + i * pitch, 58, label, SOFT, size=11.5)
            + text(MARGIN + i * pitch, 82, value, size=20, weight=500)
            for i, (label, value) in enumerate(figures)
        )

    def limits(self, y: float) -> list[str]:
        """Return the lines about what limits the run: the first sentence is the verdict, the others its figures."""
        sentences = enumerate(self.snapshot["limits"])
        lines = [(line, i == 0) for i, sentence in sentences for line in wrap(sentence, LIMIT_WIDTH)]
        return [
            text(MARGIN, y + 4 + LIMIT_HEIGHT * i, line, INK if first else SOFT)
            for i, (line, first) in enumerate(lines)
        ]

    def charts(self, y: float) -> str:
        curves = self.snapshot["curves"]
        if len(curves["t"]) < 2:
            return ""
        rates = ((SAMPLES, "samples/s per rank"), (BUS, f"{BUS} per rank"))
        shown = [rate for rate in rates if any(v for column in curves["y"].get(rate[0], []) for v in column)][:1]
        loss = next((n for n in self.names if "loss" in n.lower()), self.names[0] if self.names else None)
        if loss is not None:
            shown.insert(0, (f"log:{loss}", loss))
        if not shown:
            return ""
        width = (WIDTH - 2 * MARGIN - 24 * (len(shown) - 1)) / len(shown)
        axis = axis_of(curves, [Mark(*mark) for mark in self.snapshot["marks"]])
        return "".join(
            chart(
                MARGIN + i * (width + 24),
                y,
                width,
                label,
                (axis.x, axis.curves.get(key, [])),
                ends=_ends(axis.curves, key),
                zero=not key.startswith("log:"),
                marks=axis.marks,
                place=axis.label,
            )
            for i, (key, label) in enumerate(shown)
        )

    def table(self, y: float) -> str:
        columns = self._columns()
        parts = [f'<rect x="{MARGIN}" y="{y + 19:.0f}" width="{WIDTH - 2 * MARGIN}" height="1" fill="{RULE}"/>']
        parts += [text(c.x, y + 13, c.head, SOFT, anchor=c.anchor, size=11.5) for c in columns]
        for i, (rank, row) in enumerate(self.rows.items()):
            base = y + ROW_HEIGHT * (i + 1) + 14
            swatch = colour(i, len(self.rows))
            parts.append(f'<rect x="{MARGIN}" y="{base - 5:.0f}" width="10" height="3" rx="1.5" fill="{swatch}"/>')
            parts.append(text(MARGIN + 18, base, str(rank)))
            if slow := self.snapshot["slow"].get(str(rank)):
                parts.append(text(MARGIN + 38, base, f"slow {units.multiple(slow[0])}", AMBER, size=11))
            for column in columns[1:]:
                tone = RED if column.head == "state" and row.state in ENDED_BADLY else INK
                parts.append(text(column.x, base, column.text(row), tone, anchor=column.anchor))
        return "".join(parts)

    def _columns(self) -> list[TableColumn]:
        """Return the columns: rank and state on the left; the figures share the rest by the length of their heads."""
        figures: list[tuple[str, Callable[[Row], str]]] = [(STEP, lambda r: f"{r.step:,}")]
        for i, name in enumerate(self.names[:MAX_LOGGED]):
            figures.append((_cut(name, 14), lambda r, i=i: units.metric(r.logged[i])))  # type: ignore[misc]
        figures += [
            (SAMPLES, lambda r: units.number(r.samples_per_s)),
            (COMM, lambda r: units.percent(r.comm)),
            (BUS, lambda r: units.number(r.bus)),
            ("CPU", lambda r: units.NONE if r.cpu is None else f"{r.cpu:.0f} %"),
            ("memory", lambda r: units.decimal_size(r.rss)),
        ]
        for head, place, unit in (("GPU", UTIL, "%"), ("power", POWER, "W")):
            if any(_gpu(row, place) is not None for row in self.rows.values()):
                figures.append((head, lambda r, p=place, u=unit: _whole(_gpu(r, p), u)))  # type: ignore[misc]
        shares = [max(len(head), SHORTEST_HEAD) + 2 for head, _ in figures]
        pitch = (WIDTH - MARGIN - 190) / sum(shares)
        ends = accumulate(shares)
        left = [
            TableColumn(MARGIN, "rank", str, "start"),
            TableColumn(MARGIN + 96, "state", lambda r: _cut(STATES.get(r.state, r.state), 14), "start"),
        ]
        return left + [
            TableColumn(190 + pitch * end, head, figure) for end, (head, figure) in zip(ends, figures, strict=True)
        ]


def _ends(curves: Mapping[str, Sequence[Sequence[float | None]]], key: str) -> list[list[list[float | None]]]:
    """Return the columns of the greatest and of the least values of a curve; none if each column has one value."""
    if not key.startswith(VALUE) or LOW + (name := key.removeprefix(VALUE)) not in curves:
        return []
    return [ends_of(curves[prefix + name], curves[key]) for prefix in (HIGH, LOW)]


def chart(
    x: float,
    y: float,
    width: float,
    label: str,
    curve: tuple[Sequence[float], Sequence[Sequence[float | None]]],
    *,
    zero: bool,
    marks: Sequence[Mark] = (),
    ends: Sequence[Sequence[Sequence[float | None]]] = (),
    place: Callable[[float], str] = units.duration,
) -> str:
    """Return one chart: a line per rank over time or steps, three grid lines, marks, the label above.

    ``ends``: columns of the greatest and of the least values, between which each rank has a band.
    """
    t, columns = curve
    values = [v for part in (columns, *ends) for column in part for v in column if v is not None]
    parts = [text(x, y + 12, _cut(label, 40), weight=600)]
    if not values:
        return parts[0] + text(x + width / 2, y + PLOT_HEIGHT / 2, "no values", SOFT, anchor="middle")
    low, high = _span(min(values), max(values), zero=zero)
    left, top, right = x + 44, y + 26, x + width
    sx = (right - left) / ((t[-1] - t[0]) or 1.0)
    sy = (PLOT_HEIGHT - 4) / (high - low)

    def points_of(line: Sequence[float | None]) -> list[str]:
        places = zip(t, line, strict=True)
        return [f"{left + (when - t[0]) * sx:.1f},{top + (high - v) * sy:.1f}" for when, v in places if v is not None]

    for value in (low, (low + high) / 2, high):
        at = top + (high - value) * sy
        parts.append(f'<rect x="{left:.1f}" y="{at:.1f}" width="{right - left:.1f}" height="1" fill="{GRID}"/>')
        parts.append(text(left - 7, at + 4, units.number(value), SOFT, anchor="end", size=11))
    for i, ranks in enumerate(zip(*columns, strict=True)):
        points = " ".join(points_of(ranks))
        if ends:
            greatest, least = (points_of([column[i] for column in part]) for part in ends)
            band = " ".join([*greatest, *reversed(least)])
            parts.append(f'<polygon points="{band}" fill="{colour(i, len(columns[0]))}" opacity="0.25"/>')
        stroke = f'stroke="{colour(i, len(columns[0]))}" stroke-width="{1.5 if len(columns[0]) <= 8 else 1}"'
        parts.append(f'<polyline points="{points}" fill="none" {stroke} stroke-linejoin="round"/>')
    parts.append(_marks(marks, (t[0], t[-1]), left, right, top))
    parts.append(text(left, top + PLOT_HEIGHT + 12, place(t[0]), SOFT, size=11))
    parts.append(text(right, top + PLOT_HEIGHT + 12, place(t[-1]), SOFT, anchor="end", size=11))
    return "".join(parts)


def _marks(marks: Sequence[Mark], over: tuple[float, float], left: float, right: float, top: float) -> str:
    """Return a line for each mark, with its label if there is room for it."""
    parts, ends = [], [left] * MARK_ROWS
    for mark in marks:
        if not over[0] <= mark.t <= over[1]:
            continue
        x = left + (mark.t - over[0]) * (right - left) / ((over[1] - over[0]) or 1.0)
        parts.append(f'<rect x="{x:.1f}" y="{top}" width="1" height="{PLOT_HEIGHT - 4}" fill="{MARKS[mark.kind]}"/>')
        wide = 5.2 * len(mark.label)
        begin = x - 4 - wide if x + 4 + wide > right else x + 4  # left of the line near the right end
        row = next((row for row, end in enumerate(ends) if end <= begin), None)
        if row is not None:
            ends[row] = begin + wide + 4
            parts.append(text(begin, top + 9 + 12 * row, mark.label, MARKS[mark.kind], size=10))
    return "".join(parts)


def text(
    x: float, y: float, content: str, fill: str = INK, *, anchor: str = "start", size: float = 12, weight: int = 400
) -> str:
    """Return a text element; its content is escaped."""
    style = "" if weight == 400 else f' font-weight="{weight}"'
    style += "" if anchor == "start" else f' text-anchor="{anchor}"'
    style += "" if size == 12 else f' font-size="{size:g}"'
    style += "" if fill == INK else f' fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escaped(content)}</text>'


def escaped(content: str) -> str:
    """Return text escaped for XML."""
    return escape(_FORBIDDEN.sub("", content))


def _span(low: float, high: float, *, zero: bool) -> tuple[float, float]:
    """Return the range of the vertical axis, with room above and below; rates, and values near 0, start at 0."""
    bottom = 0.0 if zero or 0 <= low < 0.6 * high else low - 0.1 * (high - low or abs(low) or 1.0)
    return bottom, high + 0.08 * (high - bottom or 1.0)


def _gpu(row: Row, place: int) -> float | None:
    return row.gpu[place] if row.gpu else None


def _whole(value: float | None, unit: str) -> str:
    return units.NONE if value is None else f"{value:.0f} {unit}"


def _cut(value: Any, width: int) -> str:
    line = " ".join(str(value).split())
    return line if len(line) <= width else line[: width - 1] + "…"


_HEIGHT = PLOT_HEIGHT + 92
_PITCH = 110

Curve = tuple[Sequence[float], Sequence[float | None]]


def overlay(runs: Mapping[str, Mapping[str, Curve]], loss: str) -> str:
    """Return a picture with the curves of several runs: the loss, and the speed, over the seconds of each run.

    Parameters
    ----------
    runs
        Name of a run -> its curves (``curves_of`` of board.py).
    loss
        The logged value that is drawn on the left; "" for none.
    """
    candidates = [(f"log:{loss}", loss)] * bool(loss) + [(SAMPLES, f"{SAMPLES} per rank")]
    drawn = [
        (key, label)
        for key, label in candidates
        if any(any(curves[key][1]) for curves in runs.values() if key in curves)
    ]
    width = (WIDTH - 2 * MARGIN - 24 * (len(drawn) - 1)) / max(1, len(drawn))
    legend = "".join(
        f'<rect x="{MARGIN + i * _PITCH}" y="19" width="14" height="3" rx="1.5" fill="{colour(i, len(runs))}"/>'
        + text(MARGIN + i * _PITCH + 20, 25, name, SOFT)
        for i, name in enumerate(runs)
    )
    charts = "".join(
        chart(MARGIN + i * (width + 24), 40, width, label, _together(runs, key), zero=key == SAMPLES)
        for i, (key, label) in enumerate(drawn)
    )
    return framed(f"{', '.join(runs)}: curves", _HEIGHT, legend + charts)


def _together(runs: Mapping[str, Mapping[str, Curve]], key: str) -> tuple[list[float], list[list[float | None]]]:
    """Return the curves over a common time axis, with gaps at times that a run has no value for."""
    values = [dict(zip(*curves[key], strict=True)) if key in curves else {} for curves in runs.values()]
    moments = sorted({t for curve in values for t in curve})
    return moments, [[curve.get(t) for curve in values] for t in moments]
