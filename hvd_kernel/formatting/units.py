"""Numbers as people read them. dashboard.js says the same in the browser."""

# ruff: noqa: PLR2004 - a formatter is a list of thresholds

from __future__ import annotations

import math

NONE = "\u2013"


def number(value: float | None) -> str:
    """0.21, 2.14, 21.4, 2,140, 2.14 M: a column of them keeps its width."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size >= 1e6:
        scaled, unit = (value / 1e6, "M") if size < 1e9 else (value / 1e9, "G")
        return f"{f'{scaled:#.3g}'.rstrip('.')} {unit}"
    if size >= 99.95 or size == 0:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0995 else f"{value:.2g}"


def metric(value: float | str | None) -> str:
    """Return four significant digits, whole numbers (epochs, steps) as they are; ``nan`` and ``inf`` stay visible."""
    if value is None or isinstance(value, str):
        return NONE if value is None else value
    size = abs(value)
    if size and not 1e-3 <= size < 1e6:
        return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e+")  # as browsers write it
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if size >= 1000 else f"{value:#.4g}"


def percent(share: float | None) -> str:
    """0..1 as a whole percentage."""
    return NONE if share is None else f"{100 * share:.0f} %"


def multiple(times: float) -> str:
    """1.4x; beyond ten it is the other number that is next to nothing."""
    return f"{times:.1f}x" if times < 9.95 else ">10x"


def size_of(count: float | None) -> str:
    """Bytes in decimal units."""
    if not count:
        return NONE
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}" if count < 100 * scale else f"{count / scale:.0f} {unit}"
    return f"{count / 1e3:.0f} kB"


def rate_of(sent: float | None, received: float | None) -> str:
    """Bytes per second both ways together; a link that is idle is no absent one."""
    if sent is None or received is None:
        return NONE
    together = sent + received
    return f"{size_of(together)}/s" if together >= 1e3 else "0"


def duration(seconds: float) -> str:
    """12.3 s, 4:05, 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"
