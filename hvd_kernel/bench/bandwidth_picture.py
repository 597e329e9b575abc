"""Picture of a benchmark: bus bandwidth over size, a line for each contender, in SVG without a script. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from hvd_kernel.bench.report import LIMIT, Result

_WIDTH, _HEIGHT = 860, 320  # as wide as the panel's: both are as wide as their place (widgets/picture.py)
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 168, 36, 40
_COLOURS = ("#4c7bd9", "#e0803a", "#2f9e78", "#c9508c", "#8a6ad4", "#a98a1d")
_INK, _SOFT, _GRID = "#1d2129", "#6b7280", "#eceef1"
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def picture(found: Sequence[Result], np: int) -> str:
    """Return the picture; both axes are logarithmic, GB/s go up."""
    sizes = sorted({one.nbytes for one in found})
    rates = [one.busbw / 1e9 for one in found if one.busbw > 0] or [1.0]
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    high = max(high, low + 1)

    def x(nbytes: int) -> float:
        span = math.log2(sizes[-1] / sizes[0]) or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(nbytes / sizes[0]) / span

    def y(rate: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - math.log10(rate)) / (high - low)

    parts = [_text(_LEFT, 20, f"allreduce, {np} ranks: bus bandwidth in GB/s over bytes", weight=600)]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, at + 4, f"{10.0**power:g}", _SOFT, anchor="end"))
    parts += [_text(x(nbytes), _HEIGHT - 16, size(nbytes), _SOFT, anchor="middle") for nbytes in sizes]
    for i, name in enumerate(dict.fromkeys(one.contender for one in found)):
        points = [(x(one.nbytes), y(one.busbw / 1e9)) for one in found if one.contender == name and one.busbw > 0]
        colour = _SOFT if name == LIMIT else _COLOURS[i % len(_COLOURS)]
        dashes = ' stroke-dasharray="4 3"' if name == LIMIT else ""
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        at = _TOP + 10 + 18 * i
        parts.append(f'<path d="M{_WIDTH - _RIGHT + 14} {at - 4}h16" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(_text(_WIDTH - _RIGHT + 36, at, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img"'
        ' aria-label="bus bandwidth over size" font-family="system-ui, sans-serif" font-size="12"'
        f' style="max-width:{_WIDTH}px;height:auto"><rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#fff"/>'
        f"{''.join(parts)}</svg>"
    )


def size(nbytes: int) -> str:
    """Write a number of bytes in the largest unit that it has one of: ``64 KiB``."""
    scale, unit = next(each for each in _UNITS if nbytes >= each[0])
    return f"{nbytes / scale:.4g} {unit}"


def _text(x: float, y: float, content: str, fill: str = _INK, *, anchor: str = "start", weight: int = 400) -> str:
    how = f'text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" {how}>{escape(content)}</text>'
