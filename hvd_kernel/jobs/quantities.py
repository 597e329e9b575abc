"""Conversion of resource quantities of platforms, "500m" cores, "1Gi", "256M" or 4096 megabytes, to numbers.

Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ ; Slurm's and LSF's sizes are
powers of 1024 with one letter.
"""

from __future__ import annotations

import re

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_PARTS = {"n": 10**9, "u": 10**6, "m": 10**3}
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})([numkMGTPE]|[KMGTPE]i)?")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGTP]?)I?B?")
MEBIBYTE = 2**20


def quantity(text: str | float) -> float:
    """Return the number of a Kubernetes quantity: ``quantity("500m") == 0.5``, ``quantity("1Gi") == 2**30``.

    Raises
    ------
    ValueError
        The text is invalid; the message has the format.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return text
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: write 2, 0.5, 500m, 256M or 1Gi")
    number, unit = match[1], match[2] or ""
    if unit in _PARTS:
        return float(number) / _PARTS[unit]  # 9 * 1e-3 is not 0.009
    return float(number) * (_BINARY[unit] if unit in _BINARY else _DECIMAL[unit])


def size(text: str | float, *, unit: int = MEBIBYTE) -> int:
    """Return the bytes of a size in powers of 1024 with a single letter; a plain number is in units of ``unit`` bytes.

    ``size("2G") == 2**31``, ``size(256) == 256 * 2**20``, as in Slurm, LSF, Polyaxon 0.x and RiseML.

    Raises
    ------
    ValueError
        The text is invalid; the message has the format.
    """
    match = None if isinstance(text, bool) else _SIZE.fullmatch(str(text).strip().upper())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory: write 4096, 512M or 4G")
    power = " KMGTP".index(match[2]) if match[2] else 0
    return int(float(match[1]) * (2 ** (10 * power) if power else unit))


def binary(number: float) -> str:
    """Return the exact Kubernetes quantity of bytes: ``binary(2**30) == "1Gi"``, ``binary(1000) == "1000"``."""
    whole = int(number)
    for unit, factor in reversed(_BINARY.items()):
        if whole and whole % factor == 0:
            return f"{whole // factor}{unit}"
    return str(whole)


def cores(number: float) -> str:
    """Return the Kubernetes quantity of cores: ``cores(2.0) == "2"``, ``cores(0.5) == "500m"``."""
    return str(int(number)) if number == int(number) else f"{round(number * 1000)}m"
