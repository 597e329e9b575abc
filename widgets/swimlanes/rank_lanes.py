"""Swim lanes of the ranks as an SVG without script, as a table, and as a trace for Perfetto and chrome://tracing. Pure.

A lane has two rows: the program above, the core below. Names of tensors are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hvd_kernel.formatting import units
from hvd_kernel.widgets.picture import FONT, GRID, INK, MARGIN, RULE, SOFT, WIDTH, escaped, text
from hvd_kernel.widgets.swimlanes.window import NO_RANK, Drawn, Lane, late_shares
from hvd_kernel.widgets.timeline import covered, merged, short, ticks

KINDS = {
    "compute": ("#8ecae6", "computing"),
    "wait": ("#e69f00", "standing still"),
    "negotiate": ("#9aa5b1", "negotiating"),
    "queue": ("#5f3f9f", "queue"),
    "late": ("#d55e00", "waiting for a rank"),
    "transfer": ("#0072b2", "transfer"),
}
"""Kind of a bar -> its colour, distinguishable for colour-blind users, and its text in the legend."""

_LABELS, _TOP, _LANE = 74, 66, 34
_FINEST = 1.0  # pixels
_KB = 1000

Part = tuple[str, int, int]


def parts(drawn: Drawn) -> list[Part]:
    """Return the consecutive parts of an operation: (kind, begin, end)."""
    operation = drawn.operation
    arrival = operation.ready if drawn.late == NO_RANK else min(operation.agreed, operation.ready + drawn.waited)
    spans = [
        ("negotiate", operation.asked, operation.ready),
        ("late", operation.ready, arrival),
        ("negotiate", arrival, operation.agreed),
        ("queue", operation.agreed, operation.begun),
        ("transfer", operation.begun, max(operation.end, operation.begun + 1)),
    ]
    return [(kind, begin, end) for kind, begin, end in spans if end > begin]


def extent(lanes: Mapping[int, Lane]) -> tuple[int, int]:
    """Return when the first operation began and the last one ended, in microseconds."""
    operations = [drawn.operation for lane in lanes.values() for drawn in lane.operations]
    begin = min((operation.asked for operation in operations), default=0)
    return begin, max((operation.end for operation in operations), default=0)


def render(lanes: Mapping[int, Lane], title: str) -> str:
    """Return the picture of the lanes."""
    begin, end = extent(lanes)
    seconds = (end - begin) / 1e6
    height = _TOP + _LANE * len(lanes) + 34
    left, width = MARGIN + _LABELS, WIDTH - 2 * MARGIN - _LABELS
    body = [text(MARGIN, 25, title, weight=600, size=13)]
    body.append(text(WIDTH - MARGIN, 25, units.duration(seconds), SOFT, anchor="end"))
    x = left
    for colour, name in KINDS.values():
        body.append(
            f'<rect x="{x}" y="37" width="9" height="9" rx="2" fill="{colour}"/>'
            + text(x + 13, 45, name, SOFT, size=11)
        )
        x += 32 + int(5.6 * len(name))
    for at in ticks(seconds):
        place = left + width * at / (seconds or 1.0)
        body.append(f'<rect x="{place:.1f}" y="{_TOP - 4}" width="1" height="{_LANE * len(lanes) + 6}" fill="{GRID}"/>')
        body.append(text(place, height - 12, short(at) if at else "0", SOFT, anchor="middle", size=10.5))
    for i, (rank, lane) in enumerate(lanes.items()):
        body.append(text(MARGIN, _TOP + _LANE * i + 18, f"rank {rank}"))
        body += _bars(lane, (begin, end), _TOP + _LANE * i, left, width)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="timeline of {len(lanes)} ranks" font-family="{FONT}" font-size="12" fill="{INK}"'
        ' style="max-width:100%;height:auto;font-variant-numeric:tabular-nums">'
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="#fff" stroke="{RULE}"/>'
        f"{''.join(body)}</svg>"
    )


def page(lanes: Mapping[int, Lane], summary: str) -> str:
    """Return the picture with its table below, as HTML."""
    return f'{render(lanes, "timeline")}<pre style="font-size:12px">{escaped(summary)}</pre>'


def _bars(lane: Lane, over: tuple[int, int], y: int, left: float, width: float) -> Iterator[str]:
    scale = width / ((over[1] - over[0]) or 1)
    core = [part for drawn in lane.operations for part in parts(drawn)]
    rows = [
        ("compute", y + 4, 7, [(max(_arrival(lane), over[0]), over[1])]),
        ("wait", y + 4, 7, [(max(a, over[0]), min(b, over[1])) for a, b in lane.waits]),
    ]
    rows += [
        (kind, y + 13, 15, [(a, b) for part, a, b in core if part == kind])
        for kind in KINDS
        if kind not in {"compute", "wait"}
    ]
    for kind, top, tall, spans in rows:
        seen = [((a - over[0]) * scale, (b - over[0]) * scale) for a, b in spans if b > a]
        for begin, end in merged(seen, _FINEST):
            wide = max(end - begin, _FINEST)
            yield f'<rect x="{left + begin:.1f}" y="{top}" width="{wide:.1f}" height="{tall}" fill="{KINDS[kind][0]}"/>'


def _arrival(lane: Lane) -> int:
    """Return when the rank joined the cell, or started its first operation, which may be of an earlier task."""
    return min([lane.came, *(drawn.operation.asked for drawn in lane.operations[:1])])


def table(lanes: Mapping[int, Lane]) -> str:
    """Return a table: how each rank spent its time, and how long other ranks waited for it."""
    begin, end = extent(lanes)
    whole, late = (end - begin) or 1, late_shares(lanes)
    rows: list[tuple[str, ...]] = [("rank", "operations", "bytes", "standing still", "transfer", "waited for")]
    for rank, lane in lanes.items():
        transfers = [(a, b) for drawn in lane.operations for kind, a, b in parts(drawn) if kind == "transfer"]
        stood = [(max(a, begin), min(b, end)) for a, b in lane.waits if b > begin and a < end]
        share = [units.percent(covered(spans) / whole) for spans in (stood, transfers)]
        count = sum(drawn.operation.merged for drawn in lane.operations)
        nbytes = sum(drawn.operation.bytes for drawn in lane.operations)
        size = units.decimal_size(nbytes) if nbytes >= _KB else f"{nbytes} B"
        rows.append((str(rank), f"{count:,}", size, *share, short(late[rank] / 1e6) if rank in late else units.NONE))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(wide) for cell, wide in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([f"the last {short(whole / 1e6)} of {len(lanes)} ranks", *lines]) + "\n"


def chrome_trace(lanes: Mapping[int, Lane]) -> str:
    """Return Chrome's trace: a process for each rank, a thread for its program and one for the core."""
    events: list[dict[str, Any]] = []
    for rank, lane in lanes.items():
        events.append({"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        for thread, name in enumerate(("program", "core")):
            events.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}})
        for begin, end in lane.waits:
            events.append(
                {"name": "WAIT", "cat": "program", "ph": "X", "ts": begin, "dur": end - begin, "pid": rank, "tid": 0}
            )
        for drawn in lane.operations:
            for kind, begin, end in parts(drawn):
                place = {"ph": "X", "ts": begin, "dur": end - begin, "pid": rank, "tid": 1}
                events.append({"name": _name(kind, drawn), "cat": kind, **place, "args": _args(drawn)})
    return json.dumps(events, separators=(",", ":"))


def _name(kind: str, drawn: Drawn) -> str:
    operation = drawn.operation
    names = {
        "negotiate": f"NEGOTIATE_{operation.kind}",
        "late": f"WAIT_FOR_RANK_{drawn.late}",
        "queue": "QUEUE",
        "transfer": operation.how or operation.kind,
    }
    return f"{names[kind]} {operation.name}"


def _args(drawn: Drawn) -> dict[str, int]:
    operation = drawn.operation
    args = {"tensors": operation.tensors, "bytes": operation.bytes, "merged": operation.merged}
    return args if drawn.late == NO_RANK else args | {"late": drawn.late, "waited_us": drawn.waited}
