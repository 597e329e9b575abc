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
    """One contender at one size."""

    contender: str
    nbytes: int
    seconds: float  # median of the samples
    algbw: float  # bytes reduced per second
    busbw: float  # bytes per second that each rank's link carries at least
    ratio: float  # its time over ours, the median of the rounds; above 1: ours is faster
    right: bool  # every value on every rank was


def busbw(nbytes: int, seconds: float, size: int) -> float:
    """Return 2 (n - 1) / n x bytes / time: comparable between numbers of ranks."""
    return 2 * (size - 1) / size * nbytes / seconds


def results(
    nbytes: int, samples: Mapping[str, Sequence[float]], wrong: set[str], size: int, ours: str = OURS
) -> list[Result]:
    """Return the figures of one size. ``samples``: seconds by contender, one of each round, in order of rounds."""
    found = []
    for contender, seconds in samples.items():
        middle = median(seconds)
        found.append(
            Result(
                contender,
                nbytes,
                middle,
                nbytes / middle,
                busbw(nbytes, middle, size),
                median(theirs / own for theirs, own in zip(seconds, samples[ours], strict=True)),
                contender not in wrong,
            )
        )
    return found


def table(found: Sequence[Result]) -> str:
    """Return lines for a terminal; ``!`` marks a contender whose values were wrong."""
    lines = [f"{'bytes':>12} {'contender':<18} {'time':>10} {'algbw GB/s':>11} {'busbw GB/s':>11} {'time / ours':>12}"]
    for one in found:
        mark = " " if one.right else "!"
        lines.append(
            f"{one.nbytes:>12} {one.contender:<18}{_time(one.seconds):>10}{mark} {one.algbw / 1e9:>11.3f} "
            f"{one.busbw / 1e9:>11.3f} {one.ratio:>12.2f}"
        )
    return "\n".join(lines) + "\n"


def as_json(found: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the same as plain values."""
    return [asdict(one) for one in found]


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds / 1e-6:.2f} us"


def nbytes_of(text: str) -> int:
    """Read a size: 4096, 64K, 16M, 1G (powers of 1024)."""
    units = {"K": 10, "M": 20, "G": 30}
    number, unit = (text[:-1], text[-1]) if text[-1:].upper() in units else (text, "")
    if not number.isdecimal() or int(number) == 0:
        raise ValueError(f"{text!r} is not a size: write a number as in 4096, 64K, 16M or 1G")
    return int(number) << units.get(unit.upper(), 0)
