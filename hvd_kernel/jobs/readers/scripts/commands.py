"""Launcher lines of scripts and containers (srun, mpirun, horovodrun, hvdrun) -> steps, ranks, variables.

Terms.
  line   what one of them says (hvd_kernel.jobs.readers.mpirun.MpirunLine)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from hvd_kernel.jobs import lines
from hvd_kernel.jobs.documents import Document, Path
from hvd_kernel.jobs.readers import mpirun
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.shell_words import ShellWord, refuse_operators, words
from hvd_kernel.jobs.spec import JobError, Replica

_T = TypeVar("_T")

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_OPTIONS = re.compile(r"-[a-z]*c")
_SECRET = re.compile(r"(?:export\s+)?(?:HVD|HOROVOD)_SECRET_KEY\b")
_OURS = re.compile(
    r"srun(?: --het-group=0-[0-9]+ --cpu-bind=none)?(?: --cpus-per-task=[0-9]+)?"
    r"(?: --ntasks=([1-9][0-9]{0,5}) --distribution=plane=[0-9]+)? ([^-].*)",
    re.DOTALL,
)
_EXPANDED = re.compile(r"[$`]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"$`\\]*\"|\\.", re.DOTALL)
_COUNT = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_SHORT_ALONE, _ATTACHED = frozenset("lukKQvsXOHZEI"), 2
_ALONE = {
    *("contiguous", "disable-status", "exact", "exclusive", "interactive", "join", "kill-on-bad-exit", "label"),
    *("no-allocate", "no-kill", "overcommit", "overlap", "oversubscribe", "preserve-env", "pty", "quiet", "reboot"),
    *("quit-on-interrupt", "send-libs", "spread-job", "test-only", "unbuffered", "use-min-nodes", "verbose", "whole"),
}
"""Flags of srun that take no word of their own; all others do."""


def starts_ranks(text: str) -> bool:
    """Tell a line that one of the launchers begins."""
    return (
        re.match(r"(?:\S*/)?srun\s", text) is not None or mpirun.matches(text, "") or mpirun.matches_horovod(text, "")
    )


def is_ours(text: str) -> bool:
    """Tell a line that our writers put between steps, or before them."""
    return text == lines.BARRIER or _SECRET.match(text) is not None or re.fullmatch(r"set\s+[-+].*", text) is not None


def of_line(text: str, name: str) -> MpirunLine:
    """Return what a launcher's line says; any other line is a step as it stands.

    Raises
    ------
    JobError
        A flag is unknown or its value wrong.
    """
    text = text.removeprefix("exec ")
    if found := lines.of_hvdrun(text):
        step, np, interfaces = found
        return MpirunLine("horovodrun", np, interfaces=interfaces, steps=(step,))
    if not starts_ranks(text):
        return MpirunLine(steps=(text,))
    line = _srun(text, name) if re.match(r"(?:\S*/)?srun\s", text) else mpirun.parse(text, name)
    return msgspec.structs.replace(line, steps=tuple(map(lines.unwrapped, line.steps)))


def of_words(command: Sequence[str], name: str) -> MpirunLine:
    """Return what a container's command says: a launcher's line, a shell's script of such lines, or one step.

    Raises
    ------
    JobError
        As ``of_line``.
    """
    script = _script(command)
    if script is None:
        return of_line(shlex.join(command), name) if command else MpirunLine()
    return of_script(script, name) or MpirunLine(steps=(script,))


def of_script(text: str, name: str) -> MpirunLine | None:
    """Return what a script says of which each line starts ranks, or changes the folder; None: it does more.

    Raises
    ------
    JobError
        As ``of_line``.
    """
    found, workdir = [], ""
    for number, line in lines.logical(text, name):
        if is_ours(line):
            continue
        if folder := moved(line):
            workdir = folder
        elif starts_ranks(line.removeprefix("exec ")):
            found.append(of_line(line, f"{name}: line {number} of its script"))
        else:
            return None
    return msgspec.structs.replace(together(found), workdir=workdir) if found else None


def fit(line: MpirunLine, replicas: Sequence[Replica], document: Document, path: Path) -> int:
    """Return how many ranks a line starts on the replicas of a file; 0: as many as they have slots.

    Raises
    ------
    JobError
        They have fewer slots; the place is the command's.
    """
    try:
        return line.fit(replicas)
    except JobError as error:
        raise document.error(path, str(error)) from None


def moved(line: str) -> str:
    """Return the folder of ``cd FOLDER``; empty: it is another line."""
    parts = _words(line) if line.startswith("cd ") and not expands(line) else []
    return parts[1] if len(parts) == 2 else ""  # noqa: PLR2004 - cd, the folder


def expands(line: str) -> bool:
    """Tell whether a shell would put something else for a part of the line."""
    return _EXPANDED.search(_QUOTED.sub("", line)) is not None


def together(found: Sequence[MpirunLine], slots: int = 0) -> MpirunLine:
    """Return several lines as one: their steps in order, the most ranks that one asks for, 0 for all ``slots``."""
    whole = any(line.np in {0, slots} for line in found)
    most = 0 if whole else max((line.np for line in found), default=0)
    fewer = [line for line in found if line.np not in {0, slots, most}]
    ignored = [f"`{line.steps[0]}` asks for {line.np} rank(s): all run it" for line in fewer if line.steps]
    return MpirunLine(
        found[0].kind if found else "",
        np=most,
        environment=_unique(each for line in found for each in line.environment),
        workdir=next((line.workdir for line in found if line.workdir), ""),
        interfaces=_unique(each for line in found for each in line.interfaces),
        steps=tuple(step for line in found for step in line.steps),
        warnings=_unique([*(each for line in found for each in line.warnings), *ignored]),
    )


def _unique(found: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(found))


def _script(command: Sequence[str]) -> str | None:
    """Return the script of ``sh -c SCRIPT``, ``/bin/bash -ec SCRIPT``."""
    shell = len(command) == 3 and _SHELL.fullmatch(command[0]) and _OPTIONS.fullmatch(command[1])  # noqa: PLR2004
    return command[2] if shell else None


def _srun(text: str, name: str) -> MpirunLine:
    found = _OURS.fullmatch(text)
    if found and lines.is_wrapped(found[2]):
        return MpirunLine("slurm", np=int(found[1] or 0), steps=(found[2],))
    line = words(text, name)
    at, np = 1, 0
    while at < len(line) and line[at].value.startswith("-"):
        flag, value, taken = _flag(line, at)
        if flag in {"-n", "--ntasks"}:
            if not _COUNT.fullmatch(value):
                raise JobError(f"{name}: {flag} {value}: must be a whole number of tasks, at least 1.")
            np = int(value)
        at += taken
    refuse_operators(line[at:], name)
    return MpirunLine("slurm", np=np, steps=(" ".join(word.raw for word in line[at:]),) if line[at:] else ())


def _flag(line: Sequence[ShellWord], at: int) -> tuple[str, str, int]:
    """Return a flag, its value, and how many words that were."""
    text = line[at].value
    following = line[at + 1].value if at + 1 < len(line) else ""
    if text.startswith("--"):
        flag, equals, value = text.partition("=")
        return (flag, value, 1) if equals or flag[2:] in _ALONE else (flag, following, 2)
    if text[1:2] in _SHORT_ALONE or len(text) > _ATTACHED:
        return text[:2], text[2:], 1
    return text, following, 2


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []
