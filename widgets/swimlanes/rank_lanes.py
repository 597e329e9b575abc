"""Swim lanes of the ranks as an SVG without script, as a table, and as a trace for Perfetto and chrome://tracing. Pure.

A lane has two rows: above what the program did, below what the core did. Names of tensors are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hvd_kernel.formatting import units
from hvd_kernel.widgets.picture import FONT, GRID, INK, MARGIN, RULE, SOFT, WIDTH, escaped, text
from hvd_kernel.widgets.swimlanes.window import NOBODY, Drawn, Lane, late_shares
from hvd_kernel.widgets.timeline import covered, merged, short, ticks

KINDS = {
    "compute": ("#8ecae6", "computing"),
    "wait": ("#e69f00", "standing still"),
    "negotiate": ("#9aa5b1", "negotiating"),
    "queue": ("#5f3f9f", "queue"),
    "late": ("#d55e00", "waiting for a rank"),
    "transfer": ("#0072b2", "transfer"),
}
"""What a bar is -> its colour, which people who see red and green alike can tell apart, and what the legend says."""

_LABELS, _TOP, _LANE = 74, 66, 34
_FINEST = 1.0  # pixels
_KB = 1000

Part = tuple[str, int, int]


def parts(one: Drawn) -> list[Part]:
    """Return what an operation consists of: (kind, begin, end), one after the other."""
    operation = one.operation
    there = operation.ready if one.late == NOBODY else min(operation.agreed, operation.ready + one.waited)
    found = [
        ("negotiate", operation.asked, operation.ready),
        ("late", operation.ready, there),
        ("negotiate", there, operation.agreed),
        ("queue", operation.agreed, operation.begun),
        ("transfer", operation.begun, max(operation.end, operation.begun + 1)),
    ]
    return [(kind, begin, end) for kind, begin, end in found if end > begin]


def extent(lanes: Mapping[int, Lane]) -> tuple[int, int]:
    """Return when the first operation began and the last one ended, in microseconds."""
    all_of_them = [each.operation for lane in lanes.values() for each in lane.operations]
    return min((one.asked for one in all_of_them), default=0), max((one.end for one in all_of_them), default=0)


def render(lanes: Mapping[int, Lane], title: str) -> str:
    """Return the picture."""
    begin, end = extent(lanes)
    seconds = (end - begin) / 1e6
    height = _TOP + _LANE * len(lanes) + 34
    left, width = MARGIN + _LABELS, WIDTH - 2 * MARGIN - _LABELS
    body = [text(MARGIN, 25, title, weight=600, size=13)]
    body.append(text(WIDTH - MARGIN, 25, units.duration(seconds), SOFT, anchor="end"))
    x = left
    for colour, said in KINDS.values():
        body.append(
            f'<rect x="{x}" y="37" width="9" height="9" rx="2" fill="{colour}"/>'
            + text(x + 13, 45, said, SOFT, size=11)
        )
        x += 32 + int(5.6 * len(said))
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


def page(lanes: Mapping[int, Lane], said: str) -> str:
    """Return the picture with its table below, as HTML."""
    return f'{render(lanes, "timeline")}<pre style="font-size:12px">{escaped(said)}</pre>'


def _bars(lane: Lane, over: tuple[int, int], y: int, left: float, width: float) -> Iterator[str]:
    scale = width / ((over[1] - over[0]) or 1)
    core = [part for each in lane.operations for part in parts(each)]
    rows = [
        ("compute", y + 4, 7, [(max(_came(lane), over[0]), over[1])]),
        ("wait", y + 4, 7, [(max(a, over[0]), min(b, over[1])) for a, b in lane.waits]),
    ]
    rows += [
        (kind, y + 13, 15, [(a, b) for each, a, b in core if each == kind])
        for kind in KINDS
        if kind not in {"compute", "wait"}
    ]
    for kind, top, tall, spans in rows:
        seen = [((a - over[0]) * scale, (b - over[0]) * scale) for a, b in spans if b > a]
        for begin, end in merged(seen, _FINEST):
            wide = max(end - begin, _FINEST)
            yield f'<rect x="{left + begin:.1f}" y="{top}" width="{wide:.1f}" height="{tall}" fill="{KINDS[kind][0]}"/>'


def _came(lane: Lane) -> int:
    """Return when the rank was there: not later than what it has done, which a task may have been."""
    return min([lane.came, *(each.operation.asked for each in lane.operations[:1])])


def table(lanes: Mapping[int, Lane]) -> str:
    """Return for each rank how its time went, and for whom ranks waited."""
    begin, end = extent(lanes)
    whole, late = (end - begin) or 1, late_shares(lanes)
    rows: list[tuple[str, ...]] = [("rank", "operations", "bytes", "standing still", "transfer", "waited for")]
    for rank, lane in lanes.items():
        transfers = [(a, b) for each in lane.operations for kind, a, b in parts(each) if kind == "transfer"]
        stood = [(max(a, begin), min(b, end)) for a, b in lane.waits if b > begin and a < end]
        share = [units.percent(covered(spans) / whole) for spans in (stood, transfers)]
        count = sum(each.operation.merged for each in lane.operations)
        nbytes = sum(each.operation.bytes for each in lane.operations)
        size = units.size_of(nbytes) if nbytes >= _KB else f"{nbytes} B"
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
        for each in lane.operations:
            for kind, begin, end in parts(each):
                place = {"ph": "X", "ts": begin, "dur": end - begin, "pid": rank, "tid": 1}
                events.append({"name": _name(kind, each), "cat": kind, **place, "args": _args(each)})
    return json.dumps(events, separators=(",", ":"))


def _name(kind: str, one: Drawn) -> str:
    operation = one.operation
    said = {
        "negotiate": f"NEGOTIATE_{operation.kind}",
        "late": f"WAIT_FOR_RANK_{one.late}",
        "queue": "QUEUE",
        "transfer": operation.how or operation.kind,
    }
    return f"{said[kind]} {operation.name}"


def _args(one: Drawn) -> dict[str, int]:
    operation = one.operation
    args = {"tensors": operation.tensors, "bytes": operation.bytes, "merged": operation.merged}
    return args if one.late == NOBODY else args | {"late": one.late, "waited_us": one.waited}
