"""``hvdrun doctor train.py|DIR``: the migration report of a project, and of this environment's variables."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from hvd_kernel.compat import pth, shim
from hvd_kernel.errors import UsageError
from hvd_kernel.launch.doctor import project, report, variables

_NEEDS_A_LINE = 1
_HEAD = 4096


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"hvdrun doctor: {message}. Write hvdrun doctor train.py, or hvdrun doctor DIR")


def main(words: Sequence[str]) -> int:
    """Print the report; return 0 where all runs as it is, 1 where something needs a line, or is not here."""
    given = _parser().parse_args(words)
    paths = project.files(Path(given.path))
    found = project.findings(((str(path), project.text_of(path)) for path in paths), frozenset(_ready()))
    found += [each for name in sorted(os.environ) for each in variables.of(name, os.environ[name], "environment", 0)]
    whole = report.as_json(found, [*map(str, paths)]) if given.format == "json" else report.as_text(found, len(paths))
    sys.stdout.write(whole)
    return 0 if report.clean(found) else _NEEDS_A_LINE


def _parser() -> argparse.ArgumentParser:
    made = _Parser(
        "hvdrun doctor",
        description="report what of a Horovod project runs unchanged, and what has to be changed",
        epilog="Exit status 0: all of it runs unchanged. %%hvd doctor in a notebook checks the machine.",
        allow_abbrev=False,
    )
    made.add_argument("path", metavar="train.py|DIR", help="a script with the files beside it, or a project's folder")
    made.add_argument("--format", choices=("text", "json"), default="text")
    return made


def _ready() -> Iterator[str]:
    """Yield what this environment has already of Horovod's names."""
    brought = shim.installed() is not None
    if brought or any((folder / pth.NAME).exists() for folder in pth.folders()):
        yield "import"
    yield from ["horovod"] * brought
    yield from (name for name in ("horovodrun", "mpirun") if _leads_here(shutil.which(name)))


def _leads_here(command: str | None) -> bool:
    """Tell whether a command is a script that calls us."""
    if command is None:
        return False
    try:
        with Path(command).open("rb") as file:
            return b"hvd_kernel.launch" in file.read(_HEAD)
    except OSError:
        return False
