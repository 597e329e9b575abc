"""What a value may be: functions from the user's text to the core's, or a ValueError that says what is wanted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

Check = Callable[[str], str]

_FLAGS = {"0": "0", "false": "0", "no": "0", "off": "0", "1": "1", "true": "1", "yes": "1", "on": "1"}


def one_of(*choices: str) -> Check:
    """Accept a word of a list, in upper or lower case."""

    def check(text: str) -> str:
        if text.strip().lower() not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text.strip().lower()

    return check


def word(text: str) -> str:
    """Accept a text without blanks."""
    if not text or any(c.isspace() for c in text):
        raise ValueError("a name without blanks")
    return text


def anything(text: str) -> str:
    """Accept every text."""
    return text


def whole(low: int, high: int | None = None) -> Check:
    """Accept a whole number from ``low`` to ``high``."""
    wanted = f"a whole number, at least {low}" if high is None else f"a whole number from {low} to {high}"

    def check(text: str) -> str:
        if not text.strip().isdecimal() or int(text) < low or (high is not None and int(text) > high):
            raise ValueError(wanted)
        return str(int(text))

    return check


def number(low: float, high: float = math.inf, *, open_end: bool = False) -> Check:
    """Accept a number from ``low`` to ``high``; ``open_end``: ``low`` itself is too little."""
    wanted = f"a number {'above' if open_end else 'not below'} {low:g}"
    if high < math.inf:
        wanted = f"a number from {low:g} to {high:g}"

    def check(text: str) -> str:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(wanted) from None
        if not math.isfinite(value) or value < low or value > high or (open_end and value == low):
            raise ValueError(wanted)
        return repr(value)

    return check


def size(text: str) -> str:
    """Accept a number of bytes, also as 512K, 512M or 4G."""
    found = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError("a number of bytes, as in 1073741824, 512M or 4G")
    return str(int(found[1]) * 1024 ** " KMG".index(found[2].upper() or " "))


def flag(text: str) -> str:
    """Accept yes or no in its usual spellings."""
    found = _FLAGS.get(text.strip().lower())
    if found is None:
        raise ValueError("0 or 1")
    return found


def not_flag(text: str) -> str:
    """Accept yes or no for a variable that switches something off."""
    return "0" if flag(text) == "1" else "1"


def switches_off(text: str) -> str:
    """Accept yes or no for a variable whose yes means 0 for the core; its no leaves the choice to others."""
    return "0" if flag(text) == "1" else ""


def cores(text: str) -> str:
    """Accept numbers of cores with commas between them."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError("numbers of cores with commas between them, one for each rank of the host")
    return ",".join(str(int(part)) for part in parts)


def timeline(text: str) -> str:
    """Accept a path. Horovod's word DYNAMIC is none: it allows ``start_timeline``; then there is nothing to set."""
    return "" if text == "DYNAMIC" else text
