"""Speed of this machine, by a fixed piece of Python, beside that of the machine on which the budget's seconds were measured.

The two cores that we are lent are not the same every day: on 2026-11-27 the first cell of four ranks took 2.9 s instead of
1.5, a cold setup 336 s instead of 190. A slower machine gets more seconds, at most twice as many; a faster one no fewer.
"""

from __future__ import annotations

import time

REFERENCE_S = 0.046
"""What the piece took there, estimated: 0.092 s on the idle machine on which setup, lint and builds take about twice as long."""
MOST = 2.0
_TIMES = 25


def slowness(seconds: float) -> float:
    """Return how many times as long as there everything takes where the piece takes so long."""
    return min(MOST, max(1.0, seconds / REFERENCE_S))


def measured() -> float:
    """Return the seconds of the piece, the fewest of many: other work only adds to them."""
    return min(_piece() for _ in range(_TIMES))


def _piece() -> float:
    began, number = time.perf_counter(), 0
    for each in range(1_000_000):
        number = (number * 31 + each) & 0xFFFFFFFF
    return time.perf_counter() - began
