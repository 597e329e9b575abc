"""Lines of batch scripts: directives in the head, and the body.

Directives are ``#SBATCH --nodes=2`` or ``#BSUB -n 8``. Of the body, launcher lines (srun, mpirun, horovodrun, hvdrun;
also of containers) are parsed to steps, ranks and variables; variables and the working directory are read; other lines
become warnings.

Terms.
  line   a parsed launcher line (hvd_kernel.jobs.readers.mpirun.MpirunLine)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs import lines
from hvd_kernel.jobs.documents import Document, Path
from hvd_kernel.jobs.quantities import size
from hvd_kernel.jobs.readers import mpirun
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.shell_words import ShellWord, refuse_operators, words
from hvd_kernel.jobs.spec import JobError, Replica, Variable

_NUMBER = re.compile(r"[1-9][0-9]{0,5}|0", re.ASCII)


class Directive(NamedTuple):
    """A flag: its name without dashes, its value, and its position."""

    flag: str
    value: str
    where: str

    def error(self, problem: str) -> JobError:
        """Return an error about this flag."""
        return JobError(f"{self.where}: {self.flag} {self.value!r} {problem}.")

    def count(self, low: int = 1) -> int:
        """Return the value as an integer.

        Raises
        ------
        JobError
            The value is not an integer, or is below ``low``.
        """
        if not _NUMBER.fullmatch(self.value) or int(self.value) < low:
            raise self.error(f"must be a whole number, at least {low}")
        return int(self.value)

    def bytes(self, unit: int) -> int:
        """Return the value as bytes of memory; a plain number is in units of ``unit`` bytes.

        Raises
        ------
        JobError
            The value is not an amount of memory.
        """
        try:
            return size(self.value, unit=unit)
        except ValueError as error:
            raise JobError(f"{self.where}: {self.flag}: {error}.") from None


class Head(dict[str, Directive]):
    """The flags of a component by name; the last of duplicate flags takes precedence, as in schedulers."""

    def text(self, name: str) -> str:
        """Return a flag's value, or an empty string."""
        return self[name].value if name in self else ""


def of(text: str, mark: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the position and the words of each directive, up to the first command.

    Raises
    ------
    JobError
        A quote is not closed.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(mark):
            where = f"{name}:{number}: {mark}"
            try:
                yield where, shlex.split(line[len(mark) :], comments=True)
            except ValueError as error:
                raise JobError(f"{where}: {str(error).lower()}: close it.") from None
        elif line.strip() and not line.lstrip().startswith("#"):
            return


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
"""Flags of srun without a value; all others have one."""


def starts_ranks(text: str) -> bool:
    """Return whether a line starts with a launcher."""
    return (
        re.match(r"(?:\S*/)?srun\s", text) is not None or mpirun.matches(text, "") or mpirun.matches_horovod(text, "")
    )


def is_ours(text: str) -> bool:
    """Return whether a line was added by our writers, before or between steps."""
    return text == lines.BARRIER or _SECRET.match(text) is not None or re.fullmatch(r"set\s+[-+].*", text) is not None


def of_line(text: str, name: str) -> MpirunLine:
    """Parse a launcher's line; any other line is a step.

    Raises
    ------
    JobError
        A flag is unknown, or its value is invalid.
    """
    text = text.removeprefix("exec ")
    if ours := lines.of_hvdrun(text):
        step, np, interfaces = ours
        return MpirunLine("horovodrun", np, interfaces=interfaces, steps=(step,))
    if not starts_ranks(text):
        return MpirunLine(steps=(text,))
    line = _srun(text, name) if re.match(r"(?:\S*/)?srun\s", text) else mpirun.parse(text, name)
    return msgspec.structs.replace(line, steps=tuple(map(lines.unwrapped, line.steps)))


def of_words(command: Sequence[str], name: str) -> MpirunLine:
    """Parse a container's command: a launcher's line, a shell script of such lines, or a step.

    Raises
    ------
    JobError
        See ``of_line``.
    """
    script = _script(command)
    if script is None:
        return of_line(shlex.join(command), name) if command else MpirunLine()
    return of_script(script, name) or MpirunLine(steps=(script,))


def of_script(text: str, name: str) -> MpirunLine | None:
    """Parse a script whose lines all start ranks or change the folder; return None for any other script.

    Raises
    ------
    JobError
        See ``of_line``.
    """
    parsed, workdir = [], ""
    for number, line in lines.logical(text, name):
        if is_ours(line):
            continue
        if folder := moved(line):
            workdir = folder
        elif starts_ranks(line.removeprefix("exec ")):
            parsed.append(of_line(line, f"{name}: line {number} of its script"))
        else:
            return None
    return msgspec.structs.replace(together(parsed), workdir=workdir) if parsed else None


def fit(line: MpirunLine, replicas: Sequence[Replica], document: Document, path: Path) -> int:
    """Return the number of ranks that a line starts on the replicas of a file; 0: one for each slot.

    Raises
    ------
    JobError
        The replicas have fewer slots than ranks; the position is that of the command.
    """
    try:
        return line.fit(replicas)
    except JobError as error:
        raise document.error(path, str(error)) from None


def moved(line: str) -> str:
    """Return the folder of ``cd FOLDER``, or an empty string for any other line."""
    parts = _words(line) if line.startswith("cd ") and not expands(line) else []
    return parts[1] if len(parts) == 2 else ""  # noqa: PLR2004 - cd, the folder


def expands(line: str) -> bool:
    """Return whether a shell would expand a part of the line."""
    return _EXPANDED.search(_QUOTED.sub("", line)) is not None


def together(parsed: Sequence[MpirunLine], slots: int = 0) -> MpirunLine:
    """Merge lines: their steps in order, and the maximum number of ranks, 0 for all ``slots``."""
    whole = any(line.np in {0, slots} for line in parsed)
    most = 0 if whole else max((line.np for line in parsed), default=0)
    fewer = [line for line in parsed if line.np not in {0, slots, most}]
    ignored = [f"`{line.steps[0]}` asks for {plural(line.np, 'rank')}: all run it" for line in fewer if line.steps]
    return MpirunLine(
        parsed[0].kind if parsed else "",
        np=most,
        environment=_unique(variable for line in parsed for variable in line.environment),
        workdir=next((line.workdir for line in parsed if line.workdir), ""),
        interfaces=_unique(interface for line in parsed for interface in line.interfaces),
        steps=tuple(step for line in parsed for step in line.steps),
        warnings=_unique([*(warning for line in parsed for warning in line.warnings), *ignored]),
    )


def _unique(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


def _script(command: Sequence[str]) -> str | None:
    """Return the script of ``sh -c SCRIPT``, ``/bin/bash -ec SCRIPT``."""
    shell = len(command) == 3 and _SHELL.fullmatch(command[0]) and _OPTIONS.fullmatch(command[1])  # noqa: PLR2004
    return command[2] if shell else None


def _srun(text: str, name: str) -> MpirunLine:
    ours = _OURS.fullmatch(text)
    if ours and lines.is_wrapped(ours[2]):
        return MpirunLine("slurm", np=int(ours[1] or 0), steps=(ours[2],))
    line = words(text, name)
    index, np = 1, 0
    while index < len(line) and line[index].value.startswith("-"):
        flag, value, count = _flag(line, index)
        if flag in {"-n", "--ntasks"}:
            if not _COUNT.fullmatch(value):
                raise JobError(f"{name}: {flag} {value}: must be a whole number of tasks, at least 1.")
            np = int(value)
        index += count
    refuse_operators(line[index:], name)
    return MpirunLine("slurm", np=np, steps=(" ".join(word.raw for word in line[index:]),) if line[index:] else ())


def _flag(line: Sequence[ShellWord], index: int) -> tuple[str, str, int]:
    """Return a flag, its value, and the number of words."""
    text = line[index].value
    following = line[index + 1].value if index + 1 < len(line) else ""
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


_EXPORT = re.compile(r"export\s+[A-Za-z_]", re.ASCII)
_SHOWN = 60


class _Parsed(NamedTuple):
    started: list[MpirunLine]
    variables: dict[str, str | None]
    warnings: list[str]


def read_body(text: str, name: str, slots: int) -> MpirunLine:
    """Parse the lines and merge them; ``slots`` is the number of ranks for which the head reserves resources.

    Raises
    ------
    JobError
        A launcher's flag is unknown, or a quote is not closed.
    """
    parsed, workdir = _Parsed([], {}, []), ""
    for number, line in lines.logical(text, name):
        if folder := moved(line):
            workdir = folder
        elif not is_ours(line):
            _parse(line, f"{name}:{number}", parsed)
    merged = together(parsed.started, slots)
    of_launchers = {variable.name: variable.value for variable in merged.environment}
    return msgspec.structs.replace(
        merged,
        environment=tuple(Variable(key, value) for key, value in (parsed.variables | of_launchers).items()),
        workdir=workdir or merged.workdir,
        warnings=(*merged.warnings, *parsed.warnings),
    )


def _parse(line: str, where: str, parsed: _Parsed) -> None:
    if _EXPORT.match(line) and not expands(line):
        for word in shlex.split(line)[1:]:
            name, equals, value = word.partition("=")
            parsed.variables[name] = value if equals else None
    elif starts_ranks(line.removeprefix("exec ")):
        parsed.started.append(of_line(line, where))
    else:
        shown = line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
        parsed.warnings.append(f"{where}: `{' '.join(shown.split())}` is ignored: it is run once, not by the ranks")
