"""Types of command-line arguments, for the flags of ``hvdrun`` and of the magics."""

from __future__ import annotations

import argparse

from hvd_kernel.errors import ConfigError
from hvd_kernel.settings import gpus, setting

_LAST_PORT = 65535


def positive(text: str) -> int:
    """Return a whole number, at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 1")
    return int(text)


def port(text: str) -> int:
    """Return the number of a port."""
    if not text.isdecimal() or not 1 <= int(text) <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} must be a port, from 1 to {_LAST_PORT}")
    return int(text)


def seconds(text: str) -> float:
    """Return a finite number of seconds, above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be seconds, above 0")
    return value


def seconds_or_zero(text: str) -> float:
    """Return a finite number of seconds, 0 included."""
    return 0.0 if text == "0" else seconds(text)


def size(text: str) -> int:
    """Return a number of bytes above 0, written as in 1000000, 512K, 100M or 4G."""
    try:
        number = int(setting.size(text))
    except ValueError as expected:
        raise argparse.ArgumentTypeError(f"{text!r} must be {expected}") from None
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return number


def devices(text: str) -> str:
    """Return a choice of GPUs in normal form."""
    try:
        return gpus.checked(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--gpus ").removesuffix(".")) from None
