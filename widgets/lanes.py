"""Swim lanes of a recorded timeline, as one SVG without script: a lane per tensor, of limited size.

Pure: turns a recording (``timeline.parse``) into text. All text from the file is escaped.
"""

# ruff: noqa: PLR2004 - drawing is numbers: sizes, weights, positions

from __future__ import annotations

from hvd_kernel.formatting import units
from hvd_kernel.widgets.picture import FEW, FONT, GRID, INK, MARGIN, RULE, SOFT, WIDTH, escaped, text
from hvd_kernel.widgets.timeline import NEGOTIATES, Bar, Recording, merged, short, ticks

MOST_LANES = 12
HEIGHT = 20
LABELS = 190  # pixels on the left
FINEST = 3.0  # pixels: bars that are closer together are joined
TOP = 66
_NAME = 26  # characters

COLOURS = {
    "negotiate": ("#c3cad6", "negotiation"),
    "queue": ("#a98a1d", "queue"),
    "data": (FEW[1], "wait for data"),
    "other": (FEW[4], "allocate, init"),
    "work": (FEW[0], "operation"),
}
"""Kind of a bar -> its colour, and its text in the legend."""

_STEPS = {
    "QUEUE": "queue",
    "WAIT_FOR_DATA": "data",
    "ALLOCATE_OUTPUT": "other",
    "INIT_NCCL": "other",
    "INIT_DEVICES": "other",
}


def kind(bar: Bar) -> str:
    """Return the kind of a bar, a key of COLOURS."""
    return "negotiate" if bar.name.startswith(NEGOTIATES) else _STEPS.get(bar.name, "work")


def render(recording: Recording, title: str) -> str:
    """Return the picture: the lanes of the names that took longest, in the order of their first operation."""
    busiest = sorted(
        recording.rows, key=lambda name: -sum(b.end - b.begin for b in recording.rows[name] if b.depth == 0)
    )
    chosen = set(busiest[:MOST_LANES])
    shown = [name for name in recording.rows if name in chosen]
    left = len(recording.rows) - len(shown)
    height = TOP + HEIGHT * len(shown) + (52 if left else 34)  # the axis, and a line below it
    scale = (WIDTH - 2 * MARGIN - LABELS) / (recording.seconds * 1e6 or 1.0)
    body = [_head(recording, title), _axis(recording.seconds, TOP, HEIGHT * len(shown))]
    for i, name in enumerate(shown):
        body.append(_lane(name, recording.rows[name], TOP + HEIGHT * i, scale))
    if left:
        body.append(text(MARGIN, height - 12, f"and {left:,} more names, which took less", SOFT, size=11))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" aria-label="timeline: {len(recording.rows)} names" font-family="{FONT}" font-size="12"'
        f' fill="{INK}" style="max-width:100%;height:auto;font-variant-numeric:tabular-nums">'
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="#fff" stroke="{RULE}"/>'
        f"{''.join(body)}</svg>"
    )


def page(recording: Recording, title: str, summary: str) -> str:
    """Return the picture with its summary below, as HTML."""
    return f'{render(recording, title)}<pre style="font-size:12px">{escaped(summary)}</pre>'


def _head(recording: Recording, title: str) -> str:
    parts = [
        text(MARGIN, 25, title if len(title) < 80 else f"…{title[-79:]}", weight=600, size=13),
        text(WIDTH - MARGIN, 25, units.duration(recording.seconds), SOFT, anchor="end"),
    ]
    x = MARGIN + LABELS
    for colour, name in COLOURS.values():
        parts.append(f'<rect x="{x}" y="36" width="10" height="10" rx="2" fill="{colour}"/>')
        parts.append(text(x + 14, 45, name, SOFT, size=11))
        x += 34 + 6 * len(name)
    return "".join(parts)


def _axis(seconds: float, top: int, height: int) -> str:
    left, width = MARGIN + LABELS, WIDTH - 2 * MARGIN - LABELS
    parts = []
    for at in ticks(seconds):
        x = left + width * at / (seconds or 1.0)
        parts.append(f'<rect x="{x:.1f}" y="{top - 4}" width="1" height="{height + 8}" fill="{GRID}"/>')
        parts.append(text(x, top + height + 16, short(at) if at else "0", SOFT, anchor="middle", size=10.5))
    return "".join(parts)


def _lane(name: str, bars: list[Bar], y: int, scale: float) -> str:
    """Return a lane: operations first, their steps drawn above them."""
    label = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    parts = [f"<g><title>{escaped(_tip(name, bars))}</title>", text(MARGIN, y + 14, label, size=11)]
    left = MARGIN + LABELS
    for depth in range(1 + max(bar.depth for bar in bars)):
        for colour_kind, (colour, _) in COLOURS.items():
            of_kind = ((b.begin * scale, b.end * scale) for b in bars if b.depth == depth and kind(b) == colour_kind)
            for begin, end in merged(of_kind, FINEST):
                place = f'x="{left + begin:.1f}" y="{y + 3}" width="{max(end - begin, 1):.1f}" height="{HEIGHT - 6}"'
                parts.append(f'<rect {place} fill="{colour}"/>')
    return "".join([*parts, "</g>"])


def _tip(name: str, bars: list[Bar]) -> str:
    """Return the tooltip of a lane: how often its operation ran, how long, and its type and shape."""
    done = [bar for bar in bars if bar.is_operation]
    if not done:
        return name
    args = done[-1].args
    tensor = " ".join(str(args[key]) for key in ("dtype", "shape") if args.get(key))
    mean = short(sum(bar.end - bar.begin for bar in done) / len(done) / 1e6)
    size = units.decimal_size(args.get("bytes"))
    return f"{name}: {len(done):,} times, {mean} each{f', {tensor}' if tensor else ''}, {size}"
