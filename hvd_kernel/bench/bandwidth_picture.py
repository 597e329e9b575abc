"""Picture of a benchmark: bus bandwidth over size, with one line per contender, as SVG without scripts. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from hvd_kernel.bench.report import LIMIT, Result

_WIDTH, _HEIGHT = 860, 320  # the same width as the panel's pictures (widgets/picture.py)
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 168, 36, 40
_COLOURS = ("#4c7bd9", "#e0803a", "#2f9e78", "#c9508c", "#8a6ad4", "#a98a1d")
_INK, _SOFT, _GRID = "#1d2129", "#6b7280", "#eceef1"
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def picture(results: Sequence[Result], np: int) -> str:
    """Return the picture, with GB/s over bytes; both axes are logarithmic."""
    sizes = sorted({result.nbytes for result in results})
    rates = [result.busbw / 1e9 for result in results if result.busbw > 0] or [1.0]
    low, high = math.floor(math.log10(min(rates))), math.ceil(math.log10(max(rates)))
    high = max(high, low + 1)

    def x(nbytes: int) -> float:
        span = math.log2(sizes[-1] / sizes[0]) or 1.0
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(nbytes / sizes[0]) / span

    def y(rate: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - math.log10(rate)) / (high - low)

    parts = [_text(_LEFT, 20, f"allreduce, {np} ranks: bus bandwidth in GB/s over bytes", weight=600)]
    for power in range(low, high + 1):
        position = y(10.0**power)
        parts.append(f'<path d="M{_LEFT} {position:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, position + 4, f"{10.0**power:g}", _SOFT, anchor="end"))
    parts += [_text(x(nbytes), _HEIGHT - 16, size(nbytes), _SOFT, anchor="middle") for nbytes in sizes]
    for i, name in enumerate(dict.fromkeys(result.contender for result in results)):
        rows = [result for result in results if result.contender == name and result.busbw > 0]
        points = [(x(row.nbytes), y(row.busbw / 1e9)) for row in rows]
        colour = _SOFT if name == LIMIT else _COLOURS[i % len(_COLOURS)]
        dashes = ' stroke-dasharray="4 3"' if name == LIMIT else ""
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        position = _TOP + 10 + 18 * i
        parts.append(
            f'<path d="M{_WIDTH - _RIGHT + 14} {position - 4}h16" stroke="{colour}" stroke-width="2"{dashes}/>'
        )
        parts.append(_text(_WIDTH - _RIGHT + 36, position, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img"'
        ' aria-label="bus bandwidth over size" font-family="system-ui, sans-serif" font-size="12"'
        f' style="max-width:{_WIDTH}px;height:auto"><rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#fff"/>'
        f"{''.join(parts)}</svg>"
    )


def size(nbytes: int) -> str:
    """Return a number of bytes in the largest unit below it: ``64 KiB``."""
    scale, unit = next((scale, unit) for scale, unit in _UNITS if nbytes >= scale)
    return f"{nbytes / scale:.4g} {unit}"


def _text(x: float, y: float, content: str, fill: str = _INK, *, anchor: str = "start", weight: int = 400) -> str:
    attributes = f'text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" {attributes}>{escape(content)}</text>'
