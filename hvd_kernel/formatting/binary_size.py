"""Numbers of bytes in binary units. Decimal units, which the panel uses, are in ``units``."""

from __future__ import annotations

_UNITS = ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def binary_size(count: float) -> str:
    """Return a number of bytes with at most two decimals: ``1.02 GiB``, ``64 KiB``, ``512 B``."""
    for factor, unit in _UNITS:
        if count >= factor:
            return f"{count / factor:.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{count:.0f} B"
