"""Report of a benchmark: medians, bandwidths, ratios, the table, and a picture of bandwidths as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

from hvd_kernel.formatting.units import binary_size
from hvd_kernel.processes.bandwidth import bus_factor

OURS = "hvd_kernel"
LIMIT = "memory copy"


@dataclass(frozen=True)
class Result:
    """Result of a contender for one size."""

    contender: str
    nbytes: int
    seconds: float  # median of the samples
    algbw: float  # bytes reduced per second
    busbw: float  # minimum of bytes per second on the link of each rank
    ratio: float  # its time divided by ours, median of the rounds; above 1 ours is faster
    right: bool  # whether every value on every rank was correct


def busbw(nbytes: int, seconds: float, size: int) -> float:
    """Return 2 (n - 1) / n x bytes / time, which is comparable between numbers of ranks."""
    return bus_factor(size) * nbytes / seconds


def results(
    nbytes: int, samples: Mapping[str, Sequence[float]], wrong: set[str], size: int, ours: str = OURS
) -> list[Result]:
    """Return the results of one size. ``samples`` has the seconds of each round, in order, by contender."""
    rows = []
    for contender, seconds in samples.items():
        middle = median(seconds)
        rows.append(
            Result(
                contender,
                nbytes,
                middle,
                nbytes / middle,
                busbw(nbytes, middle, size),
                median(other / reference for other, reference in zip(seconds, samples[ours], strict=True)),
                contender not in wrong,
            )
        )
    return rows


def table(results: Sequence[Result]) -> str:
    """Return a table for a terminal; ``!`` marks a contender with wrong values."""
    lines = [f"{'bytes':>12} {'contender':<18} {'time':>10} {'algbw GB/s':>11} {'busbw GB/s':>11} {'time / ours':>12}"]
    for row in results:
        mark = " " if row.right else "!"
        lines.append(
            f"{row.nbytes:>12} {row.contender:<18}{_time(row.seconds):>10}{mark} {row.algbw / 1e9:>11.3f} "
            f"{row.busbw / 1e9:>11.3f} {row.ratio:>12.2f}"
        )
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the results as values for JSON."""
    return [asdict(row) for row in results]


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds / 1e-6:.2f} us"


def nbytes_of(text: str) -> int:
    """Parse a size: 4096, 64K, 16M, 1G (powers of 1024)."""
    units = {"K": 10, "M": 20, "G": 30}
    number, unit = (text[:-1], text[-1]) if text[-1:].upper() in units else (text, "")
    if not number.isdecimal() or int(number) == 0:
        raise ValueError(f"{text!r} is not a size: write a number as in 4096, 64K, 16M or 1G")
    return int(number) << units.get(unit.upper(), 0)


_WIDTH, _HEIGHT = 860, 320  # the same width as the panel's pictures (widgets/picture.py)
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 168, 36, 40
_COLOURS = ("#4c7bd9", "#e0803a", "#2f9e78", "#c9508c", "#8a6ad4", "#a98a1d")
_INK, _SOFT, _GRID = "#1d2129", "#6b7280", "#eceef1"


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
    parts += [_text(x(nbytes), _HEIGHT - 16, binary_size(nbytes), _SOFT, anchor="middle") for nbytes in sizes]
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


def _text(x: float, y: float, content: str, fill: str = _INK, *, anchor: str = "start", weight: int = 400) -> str:
    attributes = f'text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" {attributes}>{escape(content)}</text>'
