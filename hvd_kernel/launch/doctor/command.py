"""``hvdrun doctor train.py|DIR``: the migration report of a project and of this environment's variables."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from hvd_kernel.compat import pth, shim
from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.plural import plural
from hvd_kernel.launch.doctor import project
from hvd_kernel.launch.doctor.finding import Finding, Verdict, variable_findings

_EXIT_CHANGES = 1
_SCRIPT_HEAD = 4096
_MARKS = {Verdict.RUNS: "ok", Verdict.NOTE: "note", Verdict.LINE: "LINE", Verdict.NOT: "NOT"}
_NOTHING = "nothing of Horovod's was found"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"hvdrun doctor: {message}. Write hvdrun doctor train.py, or hvdrun doctor DIR")


def main(words: Sequence[str]) -> int:
    """Print the report; return 0 if everything runs unchanged, 1 if a line has to be changed or a name is missing."""
    arguments = _parser().parse_args(words)
    paths = project.files(Path(arguments.path))
    findings = project.findings(((str(path), project.text_of(path)) for path in paths), frozenset(_installed()))
    for name in sorted(os.environ):
        findings += variable_findings(name, os.environ[name], "environment", 0)
    as_json = arguments.format == "json"
    sys.stdout.write(report_json(findings, [*map(str, paths)]) if as_json else report_text(findings, len(paths)))
    return 0 if _runs_unchanged(findings) else _EXIT_CHANGES


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "hvdrun doctor",
        description="report what of a Horovod project runs unchanged, and what has to be changed",
        epilog="Exit status 0: all of it runs unchanged. %%hvd doctor in a notebook checks the machine.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="train.py|DIR", help="a script with the files beside it, or a project's folder")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser


def _installed() -> Iterator[str]:
    """Yield which of Horovod's names this environment already provides."""
    has_shim = shim.installed() is not None
    if has_shim or any((folder / pth.NAME).exists() for folder in pth.folders()):
        yield "import"
    yield from ["horovod"] * has_shim
    yield from (name for name in ("horovodrun", "mpirun") if _calls_us(shutil.which(name)))


def _calls_us(command: str | None) -> bool:
    """Return whether a command is a script that calls hvd_kernel."""
    if command is None:
        return False
    try:
        with Path(command).open("rb") as file:
            return b"hvd_kernel.launch" in file.read(_SCRIPT_HEAD)
    except OSError:
        return False


def _runs_unchanged(findings: Sequence[Finding]) -> bool:
    return not any(finding.verdict in {Verdict.LINE, Verdict.NOT} for finding in findings)


def report_text(findings: Sequence[Finding], files: int) -> str:
    """Return a line for each finding, its remedy on the next line, and the totals for the number of files read."""
    width = max((len(_location(finding)) for finding in findings), default=0)
    lines = [line for finding in findings for line in _lines(finding, width)]
    return "\n".join([*lines, _totals(findings, files)]) + "\n"


def report_json(findings: Sequence[Finding], files: Sequence[str]) -> str:
    """Return ``{"runs", "files": [...], "findings": [{"file", "line", "what", "verdict", "said", "remedy"}]}``.

    A finding in a notebook has "cell" too.
    """
    rows = [
        {"file": finding.file, "line": finding.line, "what": finding.subject, "verdict": finding.verdict.value}
        | {"said": finding.detail, "remedy": finding.remedy}
        | ({"cell": finding.cell} if finding.cell else {})
        for finding in findings
    ]
    return json.dumps({"runs": _runs_unchanged(findings), "files": list(files), "findings": rows}, indent=2) + "\n"


def _location(finding: Finding) -> str:
    cell = f":cell {finding.cell}" if finding.cell else ""
    return f"{finding.file}{cell}:{finding.line}" if finding.line else finding.file


def _lines(finding: Finding, width: int) -> list[str]:
    detail = f": {finding.detail}" if finding.detail else ""
    first = f"{_MARKS[finding.verdict]:4}  {_location(finding):{width}}  {finding.subject}{detail}"
    return [first, f"{'':{width + 8}}-> {finding.remedy}"] if finding.remedy else [first]


def _totals(findings: Sequence[Finding], files: int) -> str:
    read = f"{plural(files, 'file')} read"
    if not findings:
        return f"{read}: {_NOTHING}"
    counts = {verdict: sum(finding.verdict is verdict for finding in findings) for verdict in Verdict}
    changes, missing = counts[Verdict.LINE], counts[Verdict.NOT]
    if not changes and not missing:
        return f"{read}: all of it runs as it is"
    parts = [f"{changes} need{'s' * (changes == 1)} a line"] if changes else []
    parts += [f"{missing} {'is' if missing == 1 else 'are'} not here"] if missing else []
    return f"{read}: {counts[Verdict.RUNS] + counts[Verdict.NOTE]} run as they are, {', '.join(parts)}"
