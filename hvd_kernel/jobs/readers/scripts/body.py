"""The lines of a batch script after its head: variables, working directory, steps; others become warnings."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

import msgspec

from hvd_kernel.jobs import lines
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.readers.scripts import commands
from hvd_kernel.jobs.spec import Variable

_EXPORT = re.compile(r"export\s+[A-Za-z_]", re.ASCII)
_SHOWN = 60


class _Parsed(NamedTuple):
    started: list[MpirunLine]
    variables: dict[str, str | None]
    warnings: list[str]


def read(text: str, name: str, slots: int) -> MpirunLine:
    """Parse the lines and merge them; ``slots`` is the number of ranks for which the head reserves resources.

    Raises
    ------
    JobError
        A launcher's flag is unknown, or a quote is not closed.
    """
    parsed, workdir = _Parsed([], {}, []), ""
    for number, line in lines.logical(text, name):
        if folder := commands.moved(line):
            workdir = folder
        elif not commands.is_ours(line):
            _parse(line, f"{name}:{number}", parsed)
    merged = commands.together(parsed.started, slots)
    of_launchers = {variable.name: variable.value for variable in merged.environment}
    return msgspec.structs.replace(
        merged,
        environment=tuple(Variable(key, value) for key, value in (parsed.variables | of_launchers).items()),
        workdir=workdir or merged.workdir,
        warnings=(*merged.warnings, *parsed.warnings),
    )


def _parse(line: str, where: str, parsed: _Parsed) -> None:
    if _EXPORT.match(line) and not commands.expands(line):
        for word in shlex.split(line)[1:]:
            name, equals, value = word.partition("=")
            parsed.variables[name] = value if equals else None
    elif commands.starts_ranks(line.removeprefix("exec ")):
        parsed.started.append(commands.of_line(line, where))
    else:
        shown = line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
        parsed.warnings.append(f"{where}: `{' '.join(shown.split())}` is ignored: it is run once, not by the ranks")
