"""Files of a project, each with its reader; the findings of all of them together."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from hvd_kernel.errors import UsageError
from hvd_kernel.jobs import formats
from hvd_kernel.launch.doctor import imports, jobfiles, notebooks, packages, scripts, workflows
from hvd_kernel.launch.doctor.finding import Finding, Reader, Verdict

READERS: tuple[tuple[str, tuple[Reader, ...]], ...] = (
    (workflows.PATTERNS, (workflows.findings,)),
    ("setup.py", (imports.findings, packages.quoted)),
    ("*.py", (imports.findings,)),
    ("*.ipynb", (notebooks.findings,)),
    ("*requirements*.txt constraints*.txt requirements*.in setup.cfg", (packages.listed,)),
    ("environment*.yml environment*.yaml conda*.yml conda*.yaml", (packages.listed,)),
    ("pyproject.toml Pipfile", (packages.quoted,)),
    ("Dockerfile* *.dockerfile Containerfile*", (scripts.dockerfile,)),
    (f"*.sh *.bash {formats.SCRIPTS} *.env .env Makefile", (scripts.shell,)),
    ("*.yml *.yaml", (jobfiles.findings,)),
)
"""Names of files, with their folders where a pattern has one -> what reads them; the first row that fits."""
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", "env"}
_MOST_BYTES = 1 << 20
_MOST_FILES = 5000


def files(path: Path) -> list[Path]:
    """Return what is read of a project: a folder's files with a reader; a file, and what stands beside it but Python.

    Raises
    ------
    UsageError
        There is no such file or folder, or nothing in it that has a reader.
    """
    if path.is_dir():
        found = sorted(each for each in _below(path) if readers(str(each)))
    elif path.is_file():
        beside = (each for each in sorted(path.parent.iterdir()) if each.is_file() and each.suffix != ".py")
        found = [path, *(each for each in beside if readers(str(each)) and each != path)]
    else:
        raise UsageError(f"hvdrun doctor: there is no {path}: name a script, or a project's folder")
    if not found:
        raise UsageError(f"hvdrun doctor: {path} has no Python file, notebook, script, Dockerfile or list of packages")
    return found[:_MOST_FILES]


def readers(name: str) -> tuple[Reader, ...]:
    """Return what reads a file of that name, which may have its folders before it."""
    fitting = (row for patterns, row in READERS if any(_fits(name, pattern) for pattern in patterns.split()))
    return next(fitting, ())


def _fits(name: str, pattern: str) -> bool:
    return fnmatch(f"/{name}", f"*/{pattern}") if "/" in pattern else fnmatch(Path(name).name, pattern)


def _below(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        shown = [each for each in folders if not each.startswith(".") or each in workflows.FOLDERS]
        inside = [each for each in shown if each not in _SKIPPED]
        folders[:] = [each for each in inside if not Path(root, each, "pyvenv.cfg").exists()]
        yield from (Path(root, name) for name in names)


def text_of(path: Path) -> str:
    """Return a file's text; empty where it cannot be read or is no text that somebody wrote."""
    try:
        return path.read_text() if path.is_file() and path.stat().st_size <= _MOST_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return ""


def findings(texts: Iterable[tuple[str, str]], ready: Collection[str] = ()) -> list[Finding]:
    """Return what is found in texts, each with its file's name.

    Parameters
    ----------
    texts
        Names and texts.
    ready
        What this environment has already: "import" (of horovod, in every Python), "horovodrun", "mpirun", "horovod"
        (the distribution of that name).
    """
    given = [(name, text, readers(name)) for name, text in texts]
    found = [each for name, text, reading in given for reader in reading for each in reader(text, name)]
    python = any({imports.findings, notebooks.findings} & {*reading} for _, _, reading in given)
    uses = any("horovod" in each.what for each in found if each.needs != "starter")
    wanted = uses or not python
    return [_settled(each, ready) for each in found if wanted or each.needs not in {"starter", "mpirun"}]


def _settled(found: Finding, ready: Collection[str]) -> Finding:
    """Return a finding as one that runs, where what it needs is there."""
    needs = "import" if found.needs == "starter" else found.needs
    if not needs or needs not in ready:
        return found
    return replace(found, verdict=Verdict.RUNS, said="", remedy="")
