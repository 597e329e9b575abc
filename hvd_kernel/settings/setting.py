"""Setting: one row of the tables, which define variables, traitlets, flags and the page of settings.

The check of a row converts the user's text to the core's, or raises a ValueError with the expected form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hvd_kernel.errors import ConfigError
from hvd_kernel.settings import gpus


@dataclass(frozen=True)
class Check:
    """Check of a value, and the type of its traitlet: Int, Float, Bool or Unicode."""

    read: Callable[[str], str]
    type: str

    def __call__(self, text: str) -> str:
        """Return the value in the core's form.

        Raises
        ------
        ValueError
            The value cannot be used; the message is the expected form.
        """
        return self.read(text)


_FLAGS = {"0": "0", "false": "0", "no": "0", "off": "0", "1": "1", "true": "1", "yes": "1", "on": "1"}


def one_of(*choices: str) -> Check:
    """Accept a word of a list, in upper or lower case."""

    def check(text: str) -> str:
        if text.strip().lower() not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text.strip().lower()

    return Check(check, "Unicode")


def _word(text: str) -> str:
    """Accept a text without blanks."""
    if not text or any(c.isspace() for c in text):
        raise ValueError("a name without blanks")
    return text


def _anything(text: str) -> str:
    """Accept every text."""
    return text


MOST_COUNT = 2**31 - 1  # the core's limits (native/engine/options.cc)
MOST_BYTES = 2**63 - 1
MOST_SECONDS = 1e9
MOST_CORE = 1023  # of Linux's sched_setaffinity


def whole(low: int, high: int = MOST_COUNT) -> Check:
    """Accept a whole number from ``low`` to ``high``."""
    expected = f"a whole number from {low} to {high}"

    def check(text: str) -> str:
        if not text.strip().isdecimal() or not low <= int(text) <= high:
            raise ValueError(expected)
        return str(int(text))

    return Check(check, "Int")


def number(low: float, high: float = MOST_SECONDS, *, open_end: bool = False) -> Check:
    """Accept a number from ``low`` to ``high``; with ``open_end``, ``low`` itself is excluded."""
    least, most = (f"{limit:.10g}" for limit in (low, high))
    expected = f"a number above {least}, at most {most}" if open_end else f"a number from {least} to {most}"

    def check(text: str) -> str:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(expected) from None
        if not low <= value <= high or (open_end and value == low):  # NaN is neither
            raise ValueError(expected)
        return repr(value)

    return Check(check, "Float")


def _size(text: str) -> str:
    """Accept a number of bytes, also as 512K, 512M or 4G."""
    match = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("a number of bytes, as in 1073741824, 512M or 4G")
    return str(int(match[1]) * 1024 ** " KMG".index(match[2].upper() or " "))


def _size_or_auto(text: str) -> str:
    """Accept a number of bytes, or auto."""
    if text.strip().lower() == "auto":
        return "auto"
    try:
        return _size(text)
    except ValueError as error:
        raise ValueError(f"auto, or {error}") from None


def _flag(text: str) -> str:
    """Accept yes or no in its usual spellings."""
    value = _FLAGS.get(text.strip().lower())
    if value is None:
        raise ValueError("0 or 1")
    return value


def _not_flag(text: str) -> str:
    """Accept yes or no for a variable that switches something off."""
    return "0" if _flag(text) == "1" else "1"


def _switches_off(text: str) -> str:
    """Accept yes or no for a variable whose yes means 0 for the core; no leaves the choice to other variables."""
    return "0" if _flag(text) == "1" else ""


def _devices(text: str) -> str:
    try:
        return gpus.checked(text)
    except ConfigError as error:
        raise ValueError(f"auto, all, none or numbers of devices: {error}".rstrip(".")) from None


def _cluster_name(text: str) -> str:
    """Accept 0, 1, or the name of a detached cluster."""
    if text == "all" or not re.fullmatch(r"\w[\w.-]{0,63}", text):
        raise ValueError("0, 1 or a name of letters, digits, _ . and -, other than all")
    return text


def _cores(text: str) -> str:
    """Accept numbers of cores with commas between them."""
    parts = [part.strip() for part in text.rstrip(", ").split(",")]  # positional: only trailing entries may be missing
    if not all(part.isdecimal() and int(part) <= MOST_CORE for part in parts):
        raise ValueError(
            f"numbers of cores from 0 to {MOST_CORE} with commas between them, one for each rank of the host"
        )
    return ",".join(str(int(part)) for part in parts)


def _timeline(text: str) -> str:
    """Accept a path. Horovod's word DYNAMIC only permits ``start_timeline``: the path is then empty."""
    return "" if text == "DYNAMIC" else text


word = Check(_word, "Unicode")
anything = Check(_anything, "Unicode")
size = Check(_size, "Unicode")
size_or_auto = Check(_size_or_auto, "Unicode")
flag = Check(_flag, "Bool")
not_flag = Check(_not_flag, "Bool")
switches_off = Check(_switches_off, "Bool")
cores = Check(_cores, "Unicode")
timeline = Check(_timeline, "Unicode")
devices = Check(_devices, "Unicode")
cluster_name = Check(_cluster_name, "Unicode")


@dataclass(frozen=True)
class Setting:
    """One row: its variables (the first one set wins), the check of its value, and its meaning.

    If the check returns "", the core chooses the value; a later row of the same key wins.
    """

    variables: tuple[str, ...]
    check: Check
    default: str
    doc: str
    key: str = ""  # name in the core; empty: this package reads the setting
    flag: str = ""  # the magics' option with the same meaning, for one cell or cluster
    set_by_others: bool = False  # set by a launcher or a test, never in a configuration file

    @property
    def trait(self) -> str:
        """The name in a configuration file: ``ranks`` in ``c.HvdKernel.ranks = 4``; empty if it cannot be set there."""
        return "" if self.set_by_others else self.variables[0].partition("_")[2].lower()
