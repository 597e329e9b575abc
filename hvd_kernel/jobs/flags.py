"""Command-line flags as tables: which there are, how many values each takes, and what a reader does with it. Pure.

Terms.
  use      what a flag is for: np, hosts, variable, ...; "ignored": its note says what is done instead;
           "quiet": nothing, and nobody misses it; "refused": its note says what to write instead
  spelled  a flag and its values as they were written
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from hvd_kernel.jobs.shell_words import ShellWord
from hvd_kernel.jobs.spec import JobError

_LEFT_OUT = {"...", "…"}
_USELESS = {"ignored", "quiet", "refused"}
_GLUED = re.compile(r"(-{1,2}(?:np|n))([0-9]+)")


class Flag(NamedTuple):
    """A row of a table."""

    use: str
    nargs: int = 1
    note: str = ""


class Given(NamedTuple):
    """A flag of a line, with its values."""

    name: str
    flag: Flag
    values: tuple[str, ...]
    spelled: str


Table = Mapping[str, Flag]


class Spellings(NamedTuple):
    """Flags with their dashes, of which each may be abbreviated.

    Parameters
    ----------
    flags
        All of them.
    last
        Beginnings of those that an abbreviation means only where it can mean no other.
    """

    flags: Sequence[str] = ()
    last: tuple[str, ...] = ()

    def whole(self, begun: str, meaning: Callable[[str], Hashable]) -> str:
        """Return the flag that an abbreviation stands for, as argparse does; "": none begins so.

        >>> Spellings(("-np", "--num-proc")).whole("--num", str)
        '--num-proc'

        Parameters
        ----------
        begun
            What is written, dashes and all, without ``=value``.
        meaning
            What a flag means: several names of one meaning are no choice.

        Raises
        ------
        ValueError
            Several flags begin so; the text names them.
        """
        likely = [flag for flag in self.flags if flag.startswith(begun)]
        likely = [flag for flag in likely if not flag.startswith(self.last)] or likely
        if len({meaning(flag) for flag in likely}) > 1:
            raise ValueError(f"{begun} may be {' or '.join(likely)}: write it out")
        return likely[0] if likely else ""


_WHOLE = Spellings()


def table(*rows: tuple[str, Flag]) -> dict[str, Flag]:
    """Return a table of rows ``("n np c", Flag(...))``: several names, without their dashes, for one flag."""
    return {name: flag for names, flag in rows for name in names.split()}


def take(line: Sequence[ShellWord], known: Table, name: str, spellings: Spellings = _WHOLE) -> tuple[list[Given], int]:
    """Return the flags at the beginning of a line, and where what follows them begins.

    One dash or two mean the same, ``--flag=value`` is ``--flag value``, and dots stand for what documentation left out.
    ``spellings``: of flags that may be abbreviated; none, as with mpirun, else.

    Raises
    ------
    JobError
        A flag is unknown or refused, abbreviates several, or its value is missing.
    """
    found: list[Given] = []
    at = 0
    while at < len(line) and (line[at].value[:1] == "-" or line[at].value in _LEFT_OUT):
        text = line[at].value
        if text in _LEFT_OUT:
            found.append(Given(text, Flag("ignored", 0, "it stands for flags that are not shown"), (), text))
            at += 1
            continue
        if text == "--":
            return found, at + 1
        given = _given(line, at, known, name, spellings)
        found.append(given)
        at += 1 + given.flag.nargs - ("=" in text and given.flag.nargs > 0)
    return found, at


def _given(line: Sequence[ShellWord], at: int, known: Table, name: str, spellings: Spellings) -> Given:
    text = line[at].value
    bare, equals, rest = text.lstrip("-").partition("=")
    if bare and bare not in known:
        bare = _whole(text.partition("=")[0], known, name, spellings) or bare
    flag = known.get(bare)
    if flag is None:
        raise JobError(f"{name}: {_unknown(text.partition('=')[0], bare, known)}")
    if flag.use == "refused":
        raise JobError(f"{name}: {text}: {flag.note}.")
    first = [rest] if equals and flag.nargs else []
    values = (*first, *(word.value for word in line[at + 1 : at + 1 + flag.nargs - len(first)]))
    if len(values) < flag.nargs:
        wanted = "a value" if flag.nargs == 1 else f"{flag.nargs} values"
        raise JobError(f"{name}: {text} wants {wanted}, and the line ends there.")
    spelled = " ".join(word.raw for word in line[at : at + 1 + flag.nargs - len(first)])
    return Given(bare, flag, values, spelled)


def _whole(begun: str, known: Table, name: str, spellings: Spellings) -> str:
    try:
        return spellings.whole(begun, lambda flag: known[flag.lstrip("-")]).lstrip("-")
    except ValueError as several:
        raise JobError(f"{name}: {several}.") from None


def _unknown(text: str, bare: str, known: Table) -> str:
    if glued := _GLUED.fullmatch(text):
        return f"{text!r} is not a flag: write {glued[1]} {glued[2]}, with a space."
    near = difflib.get_close_matches(bare, known, 1)
    hint = f"did you mean {'-' * min(2, len(near[0]))}{near[0]}? " if near else ""
    used = sorted((each for each, flag in known.items() if flag.use not in _USELESS), key=str.lower)
    dashed = ", ".join("-" * min(2, len(each)) + each for each in used)
    return f"{text!r} is not a flag known here: {hint}known flags: {dashed}."


def ignored_flags(given: Sequence[Given]) -> tuple[str, ...]:
    """Return a sentence on each flag that is ignored."""
    return tuple(f"{each.spelled} is ignored: {each.flag.note}" for each in given if each.flag.use == "ignored")


def count(given: Given, name: str, *, most: int = 100_000) -> int:
    """Return a flag's value as a whole number of at least 1.

    Raises
    ------
    JobError
        It is none.
    """
    text = given.values[0]
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= most):  # noqa: PLR2004
        raise JobError(f"{name}: {given.spelled}: {text!r} must be a whole number, from 1 to {most}.")
    return int(text)
