"""Shell lines that start ranks: a step as a command of hvdrun or srun, and back; a script as its lines.

``wrapped("a | b") == "sh -c 'a | b'"``, since a launcher starts a program and knows no pipe; ``unwrapped`` undoes it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from hvd_kernel.jobs.shell_words import is_plain
from hvd_kernel.jobs.spec import JobError

START_TIMEOUT_S = 600
"""Parts of a job appear when their images have come."""
_MEET = "from hvd_kernel.core import ops, process_sets; process_sets.init(); ops.barrier()"
BARRIER = f"hvdrun --start-timeout 86400 python -c '{_MEET}'"
"""A line at which every rank of a job waits for all others, where each part of the job starts its own."""

_SHELLS_OWN = {
    *("sh", ".", "..", "...", ":", "alias", "bg", "break", "case", "cd", "command", "continue", "do"),
    *("done", "elif", "else", "esac", "eval", "exec", "exit", "export", "false", "fg", "fi", "for"),
    *("function", "getopts", "hash", "if", "in", "jobs", "kill", "local", "pwd", "read", "readonly"),
    *("return", "select", "set", "shift", "source", "test", "then", "time", "times", "trap", "true"),
    *("type", "ulimit", "umask", "unalias", "unset", "until", "wait", "while"),
}
"""What a shell would do itself, or take for its syntax."""
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
    """Return a step as what a launcher starts: itself, where it is a plain program's, else a shell that runs it."""
    words = step.split()
    plain = bool(words) and is_plain(step) and step == " ".join(words) and step.isascii()
    return step if plain and words[0] not in _SHELLS_OWN and step[0] != "-" else f"sh -c {quoted(step)}"


def unwrapped(text: str) -> str:
    """Return the step of a launcher's command."""
    words = _split(text) if text.startswith("sh -c ") else []
    return words[2] if len(words) == 3 else text  # noqa: PLR2004 - sh, -c, the step


def hvdrun(step: str, np: int = 0, interfaces: Sequence[str] = (), start_timeout_s: int = 0) -> str:
    """Return the line that has hvdrun start a step.

    Raises
    ------
    JobError
        What is called a network interface cannot be one.
    """
    wrong = [name for name in interfaces if not _INTERFACE.fullmatch(name)]
    if wrong:
        raise JobError(f"interfaces: {wrong[0]!r} is not a network interface's name, such as eth0.")
    flags = {"-np": np, "--network-interfaces": ",".join(interfaces), "--start-timeout": start_timeout_s}
    return " ".join(["hvdrun", *(f"{flag} {value}" for flag, value in flags.items() if value), wrapped(step)])


def of_hvdrun(line: str) -> tuple[str, int, tuple[str, ...]] | None:
    """Return step, np and interfaces of a line that ``hvdrun`` wrote; None: it did not."""
    found = _HVDRUN.fullmatch(line)
    if found is None or not is_wrapped(found[3]):
        return None
    return unwrapped(found[3]), int(found[1] or 0), tuple(found[2].split(",")) if found[2] else ()


def is_wrapped(text: str) -> bool:
    """Tell what ``wrapped`` returns: in any other line a pipe or a quote is the launcher's shell's."""
    return unwrapped(text) != text or is_plain(text)


def quoted(text: str) -> str:
    """Return a text as one word of a shell's line, in the quotes that are easier to read."""
    return f'"{text}"' if "'" in text and not _EXPANDED.search(text) else shlex.quote(text)


def logical(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield each line of a script with its number, without comments: quotes may hold line ends, a backslash joins two.

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


def script(steps: Sequence[str], np: int, interfaces: Sequence[str], *, parts: int = 1, workdir: str = "") -> str:
    """Return a shell's script that has hvdrun start step after step.

    Where a job has several ``parts`` that each run it, all ranks wait for each other between steps. The last line takes
    the shell's place: signals that end a container reach it.
    """
    timeout = START_TIMEOUT_S if parts > 1 else 0
    between = f"\n{BARRIER}\n" if parts > 1 else "\n"
    started = [hvdrun(step, np, interfaces, timeout) for step in steps]
    moved = [f"cd {quoted(workdir)}"] if workdir else []
    return "\n".join([*moved, between.join([*started[:-1], f"exec {started[-1]}"])])


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []
