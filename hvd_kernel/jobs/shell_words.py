"""Shell words of command lines as printed on web pages: with continuation lines, quotes, and a prompt."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from hvd_kernel.jobs.spec import JobError

_JOINED = re.compile(r"\\[ \t]*(?:\r?\n|$)")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_PROMPT = re.compile(r"^\s*\$\s+")
_SYNTAX = re.compile(r"[|&;<>()$`\\\"'*?\[\]#~=%{}\n!]")
_QUOTED = r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\""
_RAW = re.compile(rf"((?:[^ \t\r\n'\"\\]|{_QUOTED})+)([ \t\r\n]*)", re.DOTALL)
_QUOTES = re.compile(r"['\"\\]")
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPERATOR = re.compile(rf"(?:{_QUOTED}|[^|&;<>'\"\\])*[|&;<>]", re.DOTALL)

MAX_LINE = 1 << 16
_INSPECTED = 10_000


class ShellWord(NamedTuple):
    """A word of a command line: its value, its raw text, and whether it starts a line."""

    value: str
    raw: str
    first: bool

    @property
    def operates(self) -> bool:
        """Return whether the word contains a shell operator: ``|``, ``2>&1``, ``;``."""
        return _OPERATOR.match(self.raw) is not None


def split(text: str, name: str) -> list[str]:
    """Return the words of a command line.

    Raises
    ------
    JobError
        A quote is not closed, or there are no words.
    """
    return [word.value for word in words(text, name)]


def words(text: str, name: str) -> list[ShellWord]:
    """Return the words of a command line with their raw text.

    Raises
    ------
    JobError
        See ``split``.
    """
    if len(text) > MAX_LINE:
        raise JobError(f"{name}: the line has {len(text)} characters; {MAX_LINE} are allowed.")
    line = bare(text)
    result: list[ShellWord] = []
    position, gap = 0, "\n"
    while position < len(line):
        match = _RAW.match(line, position)
        if match is None:
            raise JobError(f"{name}: no closing quotation: close it, or write a backslash before the quote.")
        result.append(ShellWord(_value(match[1]), match[1], "\n" in gap))
        position, gap = match.end(), match[2]
    if not result:
        raise JobError(f"{name}: there is no command.")
    return result


def _value(raw: str) -> str:
    return "".join(shlex.split(raw)) if _QUOTES.search(raw) else raw


def is_assigned(word: ShellWord) -> bool:
    """Return whether a word before a command is ``NAME=value``."""
    return _ASSIGNED.match(word.raw) is not None


def program(text: str) -> str:
    """Return the file name of the program on a line, or an empty string if it cannot be determined."""
    line = bare(text[:_INSPECTED])
    position = 0
    while match := _RAW.match(line, position):
        if not _ASSIGNED.match(match[1]):
            return "" if _QUOTES.search(match[1]) else match[1].rpartition("/")[2]
        position = match.end()
    return ""


def refuse_operators(line: list[ShellWord], name: str) -> None:
    """Reject shell operators, as only a single command is supported.

    Raises
    ------
    JobError
        There is an operator outside of quotes.
    """
    operator = next((word.raw for word in line if word.operates), "")
    if operator:
        raise JobError(
            f"{name}: {operator!r} belongs to the shell, and only a single command is read: leave out this and "
            "what follows, or put it in quotes."
        )


def bare(text: str) -> str:
    """Return a command line without comments, continuation lines, and the prompt."""
    return _PROMPT.sub("", _JOINED.sub(" ", _COMMENT.sub("", text)).strip())


def join(words: list[str]) -> str:
    """Return words as a shell line: ``join(["echo", "a b"]) == "echo 'a b'"``."""
    return shlex.join(words)


def is_plain(line: str) -> bool:
    """Return whether a shell would only split the line at blanks."""
    return not _SYNTAX.search(line)
