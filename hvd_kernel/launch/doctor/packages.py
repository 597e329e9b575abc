"""Packages that a project asks for: horovod itself, and versions of torch and Python that are too old."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from hvd_kernel.compat import tree
from hvd_kernel.launch.doctor.finding import Finding, Verdict

TORCH, PYTHON = "2.4", "3.11"
INSTEAD = "use hvd_kernel; for packages that require horovod by name, the wheel of `hvdrun --build-horovod-shim DIR`"
_OLDEST = {"torch": TORCH, "pytorch": TORCH, "python": PYTHON}
_NAME = r"(?P<name>horovod|torch|pytorch|python)"
_REQUIRED = re.compile(
    rf"{_NAME}(?![\w.-])\s*(?:\[[^\]]*\])?\s*(?P<spec>[=<>!~][^;,#\s'\"]*(?:\s*,\s*[=<>!~][^;,#\s'\"]*)*)?"
)
_CONDA = re.compile(r"(?<![=<>!~])=(?!=)([0-9][\w.]*)(?:=\S*)?")
_LOCAL = re.compile(r"\+[\w.]+")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_QUOTED = re.compile(r"""["']([^"'\n]{1,200})["']""")
_POETRY = re.compile(r"""^\s*["']?(horovod|torch)["']?\s*=\s*(?=["'{])[^"'\n]*["']?\^?~?([\w.<>=!,* ]*)""")
_MINORS = range(40)


def listed(text: str, name: str) -> list[Finding]:
    """Read requirements.txt, setup.cfg and environment.yml: a requirement begins its line."""
    return [
        found
        for number, line in enumerate(text.splitlines(), 1)
        for found in of(line.strip().removeprefix("- ").strip(" \"'"), name, number)
    ]


def quoted(text: str, name: str) -> list[Finding]:
    """Read pyproject.toml and setup.py: a requirement is a string of its own, with Poetry a key."""
    return [found for number, line in enumerate(text.splitlines(), 1) for found in _in_quotes(line, name, number)]


def _in_quotes(line: str, name: str, number: int) -> Iterator[Finding]:
    poetry = _POETRY.match(line)
    if poetry is not None:
        spec = poetry[2] if poetry[2][:1] in "<>=!" else ""
        yield from of(poetry[1] + spec, name, number)
        return
    for each in _QUOTED.findall(line):
        if each != "python":  # a word of many lists
            yield from of(each, name, number)


def of(requirement: str, file: str, line: int) -> list[Finding]:
    """Return what there is to say on one requirement: ``horovod[pytorch]==0.28.1``, ``torch<2``, ``python=3.8``."""
    found = _REQUIRED.match(requirement)
    if found is None:
        return []
    what, package, spec = found[0].strip(), found["name"], found["spec"] or ""
    if package == "horovod":
        return [Finding(file, line, what, Verdict.LINE, _pinned(spec), INSTEAD, "horovod")]
    oldest = _OLDEST[package]
    if _admits(spec, oldest):
        return []
    title = "Python" if package == "python" else "torch"
    return [
        Finding(file, line, what, Verdict.LINE, f"{title} {oldest} is the oldest that works", f"{package}>={oldest}")
    ]


def _pinned(spec: str) -> str:
    version = tree.__version__
    return "" if _specifiers(spec).contains(version) else f"that wheel is {version}: relax the requirement"


def _admits(spec: str, oldest: str) -> bool:
    """Tell whether some version from ``oldest`` on is one that the requirement allows."""
    wanted, known = _specifiers(spec), SpecifierSet(f">={oldest}")
    major = int(oldest.partition(".")[0])
    likely = [f"{number}.{minor}.0" for number in (major, major + 1) for minor in _MINORS]
    return any(known.contains(each) and wanted.contains(each) for each in (*likely, *_VERSION.findall(spec)))


def _specifiers(spec: str) -> SpecifierSet:
    """Return a requirement's versions, conda's too; all of them where they cannot be read."""
    try:
        return SpecifierSet(_CONDA.sub(r"==\1.*", _LOCAL.sub("", spec)), prereleases=True)
    except InvalidSpecifier:
        return SpecifierSet()
