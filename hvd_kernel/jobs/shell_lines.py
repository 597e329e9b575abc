"""Shell lines: the words of command lines as printed on web pages, and the lines that start ranks.

A command line may have continuation lines, quotes, and a prompt. A launcher starts a program and has no pipes:
``wrapped("a | b") == "sh -c 'a | b'"``, of which ``unwrapped`` is the inverse.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache
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


@lru_cache(maxsize=256)
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


START_TIMEOUT_S = 600
"""Parts of a job start only after their images have been pulled."""
_MEET = "from hvd_kernel.core import ops, process_sets; process_sets.init(); ops.barrier()"
BARRIER = f"hvdrun --start-timeout 86400 python -c '{_MEET}'"
"""A barrier for all ranks of a job in which each part starts its own ranks."""

_SHELL_WORDS = {
    *("sh", ".", "..", "...", ":", "alias", "bg", "break", "case", "cd", "command", "continue", "do"),
    *("done", "elif", "else", "esac", "eval", "exec", "exit", "export", "false", "fg", "fi", "for"),
    *("function", "getopts", "hash", "if", "in", "jobs", "kill", "local", "pwd", "read", "readonly"),
    *("return", "select", "set", "shift", "source", "test", "then", "time", "times", "trap", "true"),
    *("type", "ulimit", "umask", "unalias", "unset", "until", "wait", "while"),
}
"""Builtins and keywords of a shell."""
_EXPANDED = re.compile(r'["$`\\!]')
_INTERFACE = re.compile(r"[\w.:@-]+", re.ASCII)
_HVDRUN = re.compile(
    r"hvdrun(?: -np ([1-9][0-9]{0,5}))?(?: --network-interfaces ([\w.:@,-]+))?(?: --start-timeout [0-9]+)? ([^-].*)",
    re.DOTALL,
)
_PART = re.compile(
    r"(?P<joined>\\\r?\n)|(?P<comment>(?<!\S)#[^\n]*)|(?P<end>\n)"
    r"|(?P<kept>\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|[^\\'\"\n#]+|#)|(?P<open>.)",
    re.DOTALL,
)


def wrapped(step: str) -> str:
    """Return the command for a launcher: the step itself if it is a plain command, or a shell that runs it."""
    words = step.split()
    plain = bool(words) and is_plain(step) and step == " ".join(words) and step.isascii()
    return step if plain and words[0] not in _SHELL_WORDS and step[0] != "-" else f"sh -c {quoted(step)}"


def unwrapped(text: str) -> str:
    """Return the step of a launcher's command."""
    words = _split(text) if text.startswith("sh -c ") else []
    return words[2] if len(words) == 3 else text  # noqa: PLR2004 - sh, -c, the step


def hvdrun(step: str, np: int = 0, interfaces: Sequence[str] = (), start_timeout_s: int = 0) -> str:
    """Return the hvdrun line that starts a step.

    Raises
    ------
    JobError
        The name of a network interface is invalid.
    """
    wrong = [name for name in interfaces if not _INTERFACE.fullmatch(name)]
    if wrong:
        raise JobError(f"interfaces: {wrong[0]!r} is not a network interface's name, such as eth0.")
    flags = {"-np": np, "--network-interfaces": ",".join(interfaces), "--start-timeout": start_timeout_s}
    return " ".join(["hvdrun", *(f"{flag} {value}" for flag, value in flags.items() if value), wrapped(step)])


def of_hvdrun(line: str) -> tuple[str, int, tuple[str, ...]] | None:
    """Return step, np and interfaces of a line written by ``hvdrun``; None for other lines."""
    match = _HVDRUN.fullmatch(line)
    if match is None or not is_wrapped(match[3]):
        return None
    return unwrapped(match[3]), int(match[1] or 0), tuple(match[2].split(",")) if match[2] else ()


def is_wrapped(text: str) -> bool:
    """Return whether ``wrapped`` could return this: in other lines the launcher's shell handles pipes and quotes."""
    return unwrapped(text) != text or is_plain(text)


def quoted(text: str) -> str:
    """Quote a text as a shell word, with the more readable kind of quotes."""
    return f'"{text}"' if "'" in text and not _EXPANDED.search(text) else shlex.quote(text)


def logical(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield the logical lines of a script without comments: quotes may contain newlines, backslashes join lines.

    Raises
    ------
    JobError
        A quote is not closed.
    """
    number, first, parts = 1, 1, list[str]()
    for part in _PART.finditer(text):
        if part["open"]:
            raise JobError(f"{name}:{number}: a quote is not closed: close it, or write a backslash before it.")
        if part["end"]:
            line = "".join(parts).strip()
            if line:
                yield first, line
            first, parts = number + 1, []
        elif part["kept"]:
            parts.append(part["kept"])
        number += part[0].count("\n")
    if line := "".join(parts).strip():
        yield first, line


def script(
    steps: Sequence[str],
    np: int,
    interfaces: Sequence[str],
    *,
    parts: int = 1,
    workdir: str = "",
    setup: Sequence[str] = (),
) -> str:
    """Return a shell script in which hvdrun runs the steps in order, after the lines of ``setup``.

    If several ``parts`` of a job run the script, all ranks wait for each other between steps. The last line replaces
    the shell, so that it receives the signals that stop a container.
    """
    timeout = START_TIMEOUT_S if parts > 1 else 0
    between = f"\n{BARRIER}\n" if parts > 1 else "\n"
    commands = [hvdrun(step, np, interfaces, timeout) for step in steps]
    prefix = [*([f"cd {quoted(workdir)}"] if workdir else []), *setup]
    return "\n".join([*prefix, between.join([*commands[:-1], f"exec {commands[-1]}"])])


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []
