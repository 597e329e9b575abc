"""Report of a benchmark: medians, bandwidths, ratios, and the table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

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
    return 2 * (size - 1) / size * nbytes / seconds


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
