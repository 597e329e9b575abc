"""Findings of a migration report, and those on the subjects of every kind of file: variables and requirements."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from hvd_kernel.compat import tree
from hvd_kernel.launch.placement import common_variables, rank_variables
from hvd_kernel.settings import HOROVOD_VALUES, SETTINGS, UNUSED, horovod
from hvd_kernel.settings.setting import Check


class Verdict(Enum):
    """Verdict of a finding: whether its subject works here."""

    RUNS = "runs"
    NOTE = "note"  # it runs, but has no effect, or another one than with Horovod
    LINE = "line"  # a line has to be changed or added
    NOT = "not"  # hvd_kernel does not have it
    UNSURE = "unsure"  # it could not be read, or is known only when it runs


@dataclass(frozen=True)
class Finding:
    """One row of the report.

    Parameters
    ----------
    subject
        What is found in the file, as "import horovod.torch".
    detail
        Why the verdict is what it is.
    remedy
        The line to write.
    needs
        What makes it run if it is already installed here, as "horovodrun", or which projects it concerns
        (``command.findings_of``).
    cell
        The number of a notebook's cell, from 1, and ``line`` is the cell's; 0 for other files.
    """

    file: str
    line: int
    subject: str
    verdict: Verdict
    detail: str = ""
    remedy: str = ""
    needs: str = ""
    cell: int = 0


Reader = Callable[[str, str], list[Finding]]
"""From a text and its name to findings."""

_MAX_SHOWN = 72


def short(text: str) -> str:
    """Return a command on one line, truncated for display."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN else f"{line[: _MAX_SHOWN - 4]} ..."


# Horovod's environment variables

VARIABLE_PREFIX = "HOROVOD_"
_SET_BY_HVDRUN = {*rank_variables(["host"], ["host"])[0], *common_variables(1, ("host", 1), "", 2)}
_CHECKED: dict[str, Check] = {name: row.check for row in SETTINGS for name in row.variables}
_UNUSED = {name: row.reason for row in UNUSED for name in row.variables}
_CONVERTED = {name for row in HOROVOD_VALUES for name in row.variables}
_KNOWN = sorted(name for name in {*_CHECKED, *_UNUSED, *_CONVERTED} if name.startswith(VARIABLE_PREFIX))


def variable_findings(name: str, value: str | None, file: str, line: int) -> list[Finding]:
    """Return the findings on a variable that is set, or read if ``value`` is None; none unless it is Horovod's."""
    if not name.startswith(VARIABLE_PREFIX) or name == VARIABLE_PREFIX:
        return []
    subject = name if value is None else f"{name}={value}"
    verdict, detail, remedy = _judge_variable(name, value)
    return [Finding(file, line, subject, verdict, detail, remedy)]


def _judge_variable(name: str, value: str | None) -> tuple[Verdict, str, str]:
    if value is None and name in _SET_BY_HVDRUN:
        return Verdict.RUNS, "hvdrun sets it for each rank", ""
    if name in _UNUSED:
        return Verdict.NOTE, f"without effect: {_UNUSED[name]}", ""
    if name not in _CHECKED and name not in _CONVERTED:
        near = difflib.get_close_matches(name, _KNOWN, 1, cutoff=0.8)
        return Verdict.NOTE, "nothing here reads it", f"did you mean {near[0]}?" if near else ""
    return _judge_value(name, value) if value and "$" not in value else (Verdict.RUNS, "", "")


def _judge_value(name: str, value: str) -> tuple[Verdict, str, str]:
    settings, warnings = horovod.read({name: value})
    if warnings:
        return Verdict.NOTE, warnings[0].removeprefix(f"{name}={value!r}: ").removesuffix("."), ""
    try:
        if name in _CHECKED and settings[name]:
            _CHECKED[name](settings[name])
    except ValueError as error:
        return Verdict.LINE, "init() refuses this value", f"write {error}"
    return Verdict.RUNS, "", ""


# Required packages: horovod, and versions of torch and Python that are too old

MIN_TORCH, MIN_PYTHON = "2.4", "3.11"
_REPLACEMENT = (
    "use hvd_kernel; for packages that require horovod by name, the wheel of `hvdrun --build-horovod-shim DIR`"
)
_MIN_VERSIONS = {"torch": MIN_TORCH, "pytorch": MIN_TORCH, "python": MIN_PYTHON}
_NAME = r"(?P<name>horovod|torch|pytorch|python)"
_REQUIREMENT = re.compile(
    rf"{_NAME}(?![\w.-])\s*(?:\[[^\]]*\])?\s*(?P<spec>[=<>!~][^;,#\s'\"]*(?:\s*,\s*[=<>!~][^;,#\s'\"]*)*)?"
)
_CONDA = re.compile(r"(?<![=<>!~])=(?!=)([0-9][\w.]*)(?:=\S*)?")
_LOCAL = re.compile(r"\+[\w.]+")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_MINORS = range(40)


def requirement_findings(requirement: str, file: str, line: int) -> list[Finding]:
    """Return the findings on one requirement: ``horovod[pytorch]==0.28.1``, ``torch<2``, ``python=3.8``."""
    match = _REQUIREMENT.match(requirement)
    if match is None:
        return []
    subject, package, spec = match[0].strip(), match["name"], match["spec"] or ""
    if package == "horovod":
        return [Finding(file, line, subject, Verdict.LINE, _pin_conflict(spec), _REPLACEMENT, "horovod")]
    oldest = _MIN_VERSIONS[package]
    if _admits(spec, oldest):
        return []
    title = "Python" if package == "python" else "torch"
    detail = f"{title} {oldest} is the oldest that works"
    return [Finding(file, line, subject, Verdict.LINE, detail, f"{package}>={oldest}")]


def _pin_conflict(spec: str) -> str:
    version = tree.__version__
    return "" if _specifiers(spec).contains(version) else f"that wheel is {version}: relax the requirement"


def _admits(spec: str, oldest: str) -> bool:
    """Return whether the requirement admits some version that is not older than ``oldest``."""
    required, supported = _specifiers(spec), SpecifierSet(f">={oldest}")
    major = int(oldest.partition(".")[0])
    likely = [f"{number}.{minor}.0" for number in (major, major + 1) for minor in _MINORS]
    versions = (*likely, *_VERSION.findall(spec))
    return any(supported.contains(version) and required.contains(version) for version in versions)


def _specifiers(spec: str) -> SpecifierSet:
    """Return the versions of a requirement, also in conda's notation; all versions if it cannot be parsed."""
    try:
        return SpecifierSet(_CONDA.sub(r"==\1.*", _LOCAL.sub("", spec)), prereleases=True)
    except InvalidSpecifier:
        return SpecifierSet()
