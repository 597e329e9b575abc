"""The lines of a batch script below its head: variables, the folder, steps; all else runs on one node, and is noted."""

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


class _Found(NamedTuple):
    started: list[MpirunLine]
    variables: dict[str, str | None]
    warnings: list[str]


def read(text: str, name: str, slots: int) -> MpirunLine:
    """Return what the lines say, as one; ``slots`` are the ranks that the head has room for.

    Raises
    ------
    JobError
        A launcher's flag is unknown, or a quote is not closed.
    """
    found, workdir = _Found([], {}, []), ""
    for number, line in lines.logical(text, name):
        if folder := commands.moved(line):
            workdir = folder
        elif not commands.is_ours(line):
            _take(line, f"{name}:{number}", found)
    merged = commands.together(found.started, slots)
    own = {each.name: each.value for each in merged.environment}
    return msgspec.structs.replace(
        merged,
        environment=tuple(Variable(each, value) for each, value in (found.variables | own).items()),
        workdir=workdir or merged.workdir,
        warnings=(*merged.warnings, *found.warnings),
    )


def _take(line: str, where: str, found: _Found) -> None:
    if _EXPORT.match(line) and not commands.expands(line):
        for word in shlex.split(line)[1:]:
            name, equals, value = word.partition("=")
            found.variables[name] = value if equals else None
    elif commands.starts_ranks(line.removeprefix("exec ")):
        found.started.append(commands.of_line(line, where))
    else:
        shown = line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
        found.warnings.append(f"{where}: `{' '.join(shown.split())}` is ignored: it is run once, not by the ranks")
