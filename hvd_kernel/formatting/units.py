"""Numbers as text, with their units or nouns.

Except ``binary_size`` and ``plural`` the formats are those of widgets/js/units.js: both are tested with the same table
of numbers and texts, tests/unit/js/units.json. A tie is rounded up, as in browsers.
"""

# ruff: noqa: PLR2004 - a formatter is a list of thresholds

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext

NONE = "\u2013"

_BINARY = ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def plural(count: int, noun: str) -> str:
    """Return a count and its noun: ``1 rank``, ``3 ranks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def number(value: float | None) -> str:
    """Return a number for a column of constant width: ``0.21``, ``2.14``, ``21.4``, ``2,140``, ``2.14 M``."""
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
    """Return a metric with four significant digits, or all digits of a whole number (epochs, steps), or its text."""
    if value is None or isinstance(value, str):
        return NONE if value is None else value
    size = abs(value)
    if size and not 1e-3 <= size < 1e6:
        return _rounded(value, ".2e")
    if value == round(value):
        return f"{value:,.0f}"
    return _rounded(value, ",.1f") if size >= 1000 else _significant(value, 4)


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 as a whole percentage."""
    return NONE if share is None else f"{_rounded(100 * share, '.0f')} %"


def multiple(times: float) -> str:
    """Return a ratio: ``1.4x``; above ten ``>10x``, as the divisor is then close to zero."""
    return f"{_rounded(times, '.1f')}x" if times < 9.95 else ">10x"


def decimal_size(count: float | None) -> str:
    """Return a measured number of bytes, such as memory in use or a rate, in decimal units: ``2.5 MB``."""
    if not count:
        return NONE
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            scaled = count / scale
            return f"{_short(_significant(scaled, 3)) if scaled < 100 else _rounded(scaled, '.0f')} {unit}"
    return f"{_rounded(count / 1e3, '.0f')} kB" if count >= 1e3 else f"{_rounded(count, '.0f')} B"


def binary_size(count: float) -> str:
    """Return a limit or request of bytes in binary units, in which platforms and users write it: ``1.02 GiB``."""
    for factor, unit in _BINARY:
        if count >= factor:
            return f"{count / factor:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{count:.0f} B"


def rate_of(sent: float | None, received: float | None) -> str:
    """Return the sum of bytes sent and received per second; ``0`` for an idle link, a dash for a missing one."""
    if sent is None or received is None:
        return NONE
    together = sent + received
    return f"{decimal_size(together)}/s" if together >= 1e3 else "0"


def duration(seconds: float) -> str:
    """Return a duration: ``12.3 s``, ``4:05``, ``1:02:03``."""
    if seconds < 59.95:
        return f"{_rounded(seconds, '.1f')} s"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rounded(value: float, form: str) -> str:
    """Format the exact binary value and round ties up; ``format`` of a float rounds ties to even."""
    with localcontext(rounding=ROUND_HALF_UP):
        return format(Decimal(value), form)


def _significant(value: float, digits: int) -> str:
    """Format like JavaScript's toPrecision: significant digits with trailing zeros, or an exponent."""
    rounded = Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(value)
    exponent = rounded.adjusted()
    return f"{rounded:.{digits - 1 - exponent}f}" if -7 < exponent < digits else f"{rounded:.{digits - 1}e}"


def _short(text: str) -> str:
    """Remove trailing zeros after the decimal point."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def not_finite(value: str) -> str:
    """Return a number that is not finite, as Python writes it, for people.

    Examples
    --------
    >>> not_finite("nan"), not_finite("-inf")
    ('NaN', '-infinity')
    """
    return {"nan": "NaN", "inf": "infinity", "-inf": "-infinity"}[value]
