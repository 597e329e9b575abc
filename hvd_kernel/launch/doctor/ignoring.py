"""Findings that a project ignores: a comment on the line, or a file ``.hvdrun-doctor-ignore`` in the project's folder.

A line of the file is a pattern of paths, from the project's folder, and, after a colon and a blank, a text of the
findings: ``vendor/*``, ``train.py: HOROVOD_CYCLE_TIME``. Empty lines and those that begin with # are comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from hvd_kernel.launch.doctor.finding import Finding

FILE = ".hvdrun-doctor-ignore"
COMMENT = "hvdrun-doctor: ignore"
"""A line that has it, in a comment, has no findings."""


def kept(findings: Iterable[Finding], texts: Sequence[tuple[str, str]], folder: Path) -> list[Finding]:
    """Return the findings that the project does not ignore."""
    rules = _rules(folder)
    commented = {name: _commented(text) for name, text in texts if COMMENT in text}
    return [
        finding
        for finding in findings
        if not _is_commented(finding, commented) and not any(_applies(rule, finding, folder) for rule in rules)
    ]


def _rules(folder: Path) -> list[tuple[str, str]]:
    try:
        lines = (folder / FILE).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    rows = (line.strip().partition(": ") for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return [(pattern.strip(), text.strip()) for pattern, _, text in rows]


def _applies(rule: tuple[str, str], finding: Finding, folder: Path) -> bool:
    pattern, text = rule
    path = Path(finding.file)
    name = str(path.relative_to(folder)) if path.is_relative_to(folder) else finding.file
    return (fnmatch(name, pattern) or fnmatch(path.name, pattern)) and text in f"{finding.subject} {finding.detail}"


def _commented(text: str) -> set[int]:
    return {number for number, line in enumerate(text.splitlines(), 1) if COMMENT in line}


def _is_commented(finding: Finding, commented: Mapping[str, set[int]]) -> bool:
    return not finding.cell and finding.line in commented.get(finding.file, ())
