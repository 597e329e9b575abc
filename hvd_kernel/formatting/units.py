"""Numbers and units as people read them, in the same words as widgets/js/units.js.

tests/unit/js/units.json holds both: a table of numbers and their texts. A tie is rounded up, as browsers do.
"""

# ruff: noqa: PLR2004 - a formatter is a list of thresholds

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext

NONE = "\u2013"


def number(value: float | None) -> str:
    """0.21, 2.14, 21.4, 2,140, 2.14 M: a column of them keeps its width."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    if size >= 1e6:
        scale, unit = (1e9, "G") if size >= 999.5e6 else (1e6, "M")
        return f"{_significant(value / scale, 3)} {unit}"
    if size >= 99.95 or size == 0:
        return _rounded(value, ",.0f")
    if size >= 9.995:
        return _rounded(value, ".1f")
    return _rounded(value, ".2f") if size >= 0.0995 else _significant(value, 2)


def metric(value: float | str | None) -> str:
    """Return four significant digits, whole numbers (epochs, steps) as they are; ``nan`` and ``inf`` stay visible."""
    if value is None or isinstance(value, str):
        return NONE if value is None else value
    size = abs(value)
    if size and not 1e-3 <= size < 1e6:
        return _rounded(value, ".2e")
    if value == round(value):
        return f"{value:,.0f}"
    return _rounded(value, ",.1f") if size >= 1000 else _significant(value, 4)


def percent(share: float | None) -> str:
    """0..1 as a whole percentage."""
    return NONE if share is None else f"{_rounded(100 * share, '.0f')} %"


def multiple(times: float) -> str:
    """1.4x; beyond ten it is the other number that is next to nothing."""
    return f"{_rounded(times, '.1f')}x" if times < 9.95 else ">10x"


def size_of(count: float | None) -> str:
    """Bytes in decimal units."""
    if not count:
        return NONE
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            scaled = count / scale
            return f"{_short(_significant(scaled, 3)) if scaled < 100 else _rounded(scaled, '.0f')} {unit}"
    return f"{_rounded(count / 1e3, '.0f')} kB" if count >= 1e3 else f"{_rounded(count, '.0f')} B"


def rate_of(sent: float | None, received: float | None) -> str:
    """Bytes per second, sent and received together; an idle link is ``0``, an absent one has no number."""
    if sent is None or received is None:
        return NONE
    together = sent + received
    return f"{size_of(together)}/s" if together >= 1e3 else "0"


def duration(seconds: float) -> str:
    """12.3 s, 4:05, 1:02:03."""
    if seconds < 59.95:
        return f"{_rounded(seconds, '.1f')} s"
    minutes, s = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"


def _rounded(value: float, form: str) -> str:
    """Format by the binary value itself, ties up: ``format`` of a float rounds them to even."""
    with localcontext(rounding=ROUND_HALF_UP):
        return format(Decimal(value), form)


def _significant(value: float, digits: int) -> str:
    """Format with so many digits, zeros at the end too; with an exponent where JavaScript's toPrecision has one."""
    rounded = Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(value)
    exponent = rounded.adjusted()
    return f"{rounded:.{digits - 1 - exponent}f}" if -7 < exponent < digits else f"{rounded:.{digits - 1}e}"


def _short(text: str) -> str:
    """Without zeros after the point."""
    return text.rstrip("0").rstrip(".") if "." in text else text
