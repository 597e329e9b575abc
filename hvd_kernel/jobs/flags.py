"""Tables of command-line flags: their names, number of values, and use. Pure.

Terms.
  use      purpose of a flag: np, hosts, variable, ...; "ignored": the note has the reason; "quiet": ignored without a
           warning; "refused": the note has an alternative
  spelled  a flag and its values as written by the user
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from hvd_kernel.jobs.shell_lines import ShellWord
from hvd_kernel.jobs.spec import JobError

_LEFT_OUT = {"...", "…"}
_USELESS = {"ignored", "quiet", "refused"}
_GLUED = re.compile(r"(-{1,2}(?:np|n))([0-9]+)")


class Flag(NamedTuple):
    """A flag of a table."""

    use: str
    nargs: int = 1
    note: str = ""


class ParsedFlag(NamedTuple):
    """A flag on a command line, with its values."""

    name: str
    flag: Flag
    values: tuple[str, ...]
    spelled: str


Table = Mapping[str, Flag]


class Spellings(NamedTuple):
    """Flags with dashes that may be abbreviated.

    Parameters
    ----------
    flags
        All flags.
    last
        Prefixes of flags with low priority: an abbreviation stands for them only if no other flag matches.
    """

    flags: Sequence[str] = ()
    last: tuple[str, ...] = ()

    def whole(self, begun: str, meaning: Callable[[str], Hashable]) -> str:
        """Return the flag for an abbreviation, like argparse, or an empty string if no flag matches.

        >>> Spellings(("-np", "--num-proc")).whole("--num", str)
        '--num-proc'

        Parameters
        ----------
        begun
            The abbreviation with dashes, without ``=value``.
        meaning
            Function that returns the meaning of a flag: names with the same meaning are not ambiguous.

        Raises
        ------
        ValueError
            The abbreviation is ambiguous; the message has the flags.
        """
        likely = [flag for flag in self.flags if flag.startswith(begun)]
        likely = [flag for flag in likely if not flag.startswith(self.last)] or likely
        if len({meaning(flag) for flag in likely}) > 1:
            raise ValueError(f"{begun} may be {' or '.join(likely)}: write it out")
        return likely[0] if likely else ""


_WHOLE = Spellings()


def table(*rows: tuple[str, Flag]) -> dict[str, Flag]:
    """Return a table from rows ``("n np c", Flag(...))`` with the names of a flag, without dashes."""
    return {name: flag for names, flag in rows for name in names.split()}


def split(
    line: Sequence[ShellWord], table: Table, name: str, spellings: Spellings = _WHOLE
) -> tuple[list[ParsedFlag], int]:
    """Return the flags at the start of a command line, and the index of the first word after them.

    One and two dashes are equivalent, ``--flag=value`` is ``--flag value``, and an ellipsis is accepted. ``spellings``
    has the flags that may be abbreviated; by default there are no abbreviations, as with mpirun.

    Raises
    ------
    JobError
        A flag is unknown, refused or ambiguous, or its value is missing.
    """
    flags: list[ParsedFlag] = []
    index = 0
    while index < len(line) and (line[index].value[:1] == "-" or line[index].value in _LEFT_OUT):
        text = line[index].value
        if text in _LEFT_OUT:
            flags.append(ParsedFlag(text, Flag("ignored", 0, "it stands for flags that are not shown"), (), text))
            index += 1
            continue
        if text == "--":
            return flags, index + 1
        flag = _read_flag(line, index, table, name, spellings)
        flags.append(flag)
        index += 1 + flag.flag.nargs - ("=" in text and flag.flag.nargs > 0)
    return flags, index


def _read_flag(line: Sequence[ShellWord], index: int, table: Table, name: str, spellings: Spellings) -> ParsedFlag:
    text = line[index].value
    bare, equals, rest = text.lstrip("-").partition("=")
    if bare and bare not in table:
        bare = _whole(text.partition("=")[0], table, name, spellings) or bare
    flag = table.get(bare)
    if flag is None:
        raise JobError(f"{name}: {_unknown(text.partition('=')[0], bare, table)}")
    if flag.use == "refused":
        raise JobError(f"{name}: {text}: {flag.note}.")
    first = [rest] if equals and flag.nargs else []
    values = (*first, *(word.value for word in line[index + 1 : index + 1 + flag.nargs - len(first)]))
    if len(values) < flag.nargs:
        expected = "a value" if flag.nargs == 1 else f"{flag.nargs} values"
        raise JobError(f"{name}: {text} wants {expected}, and the line ends there.")
    spelled = " ".join(word.raw for word in line[index : index + 1 + flag.nargs - len(first)])
    return ParsedFlag(bare, flag, values, spelled)


def _whole(begun: str, table: Table, name: str, spellings: Spellings) -> str:
    try:
        return spellings.whole(begun, lambda flag: table[flag.lstrip("-")]).lstrip("-")
    except ValueError as error:
        raise JobError(f"{name}: {error}.") from None


def _unknown(text: str, bare: str, table: Table) -> str:
    if glued := _GLUED.fullmatch(text):
        return f"{text!r} is not a flag: write {glued[1]} {glued[2]}, with a space."
    near = difflib.get_close_matches(bare, table, 1)
    hint = f"did you mean {'-' * min(2, len(near[0]))}{near[0]}? " if near else ""
    used = sorted((flag_name for flag_name, flag in table.items() if flag.use not in _USELESS), key=str.lower)
    dashed = ", ".join("-" * min(2, len(flag_name)) + flag_name for flag_name in used)
    return f"{text!r} is not a flag known here: {hint}known flags: {dashed}."


def ignored_flags(flags: Sequence[ParsedFlag]) -> tuple[str, ...]:
    """Return a sentence for each ignored flag."""
    return tuple(f"{flag.spelled} is ignored: {flag.flag.note}" for flag in flags if flag.flag.use == "ignored")


def count(flag: ParsedFlag, name: str, *, most: int = 100_000) -> int:
    """Return a flag's value as a whole number of at least 1.

    Raises
    ------
    JobError
        The value is not such a number.
    """
    text = flag.values[0]
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= most):  # noqa: PLR2004
        raise JobError(f"{name}: {flag.spelled}: {text!r} must be a whole number, from 1 to {most}.")
    return int(text)
