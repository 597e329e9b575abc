"""Notebooks of a project: their cells as one Python program, with the lines of IPython that a shell runs."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hvd_kernel.launch.doctor import imports, scripts
from hvd_kernel.launch.doctor.finding import Finding

_SHELLS = {"%%bash", "%%sh"}
_BEFORE_PYTHON = re.compile(r"\s*%{1,2}(?:time|timeit|prun|memit|capture)\b(?:\s+-\S+)*\s*")
_VARIABLE = re.compile(r"\s*%(?:set_)?env\s+(\w+)(?:\s*=\s*|\s+)(\S.*)")
_CALLED = re.compile(r"\s*(?:[\w, ]+=\s*)?!{1,2}(?P<line>.*)")
_INSTALLS = re.compile(r"\s*%(?P<line>(?:pip|conda|mamba|uv)\s.*)")
_OTHERS = re.compile(r"\s*[%?!]|.*[\w\])]\?{1,2}\s*$")
_PYTHON, _SHELL, _NEITHER = "python", "shell", "neither"
_SHELL_LINES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_VARIABLE, lambda found: f"export {found[1]}={found[2]}"),
    (_INSTALLS, lambda found: found["line"]),
    (_CALLED, lambda found: found["line"]),
)


@dataclass(frozen=True)
class _Cell:
    """A cell's lines for Python and for a shell, each as many as the cell has; what is of the other is empty."""

    number: int
    python: list[str]
    shell: list[str]


def findings(text: str, name: str) -> list[Finding]:
    """Read a notebook: each finding has the number of its cell, from 1, and its line there."""
    cells = list(_cells(text))
    places = [(cell.number, line) for cell in cells for line in range(1, len(cell.python) + 1)]
    found = imports.findings("\n".join(line for cell in cells for line in cell.python), name)
    whole = [replace(each, cell=places[each.line - 1][0], line=places[each.line - 1][1]) for each in found]
    for cell in cells:
        whole += [replace(each, cell=cell.number) for each in scripts.shell("\n".join(cell.shell), name)]
    return sorted(whole, key=lambda each: (each.cell, each.line))


def _cells(text: str) -> Iterator[_Cell]:
    try:
        listed = json.loads(text)["cells"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    for number, cell in enumerate(listed if isinstance(listed, list) else (), 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source")
            parts = [part for part in (source if isinstance(source, list) else [source]) if isinstance(part, str)]
            yield _cell(number, "".join(parts).splitlines())


def _cell(number: int, lines: list[str]) -> _Cell:
    first = lines[0].split() if lines else []
    if first[:1] and first[0] in _SHELLS:
        return _Cell(number, [""] * len(lines), ["", *lines[1:]])
    cell = _Cell(number, [], [])
    open_end = None
    for line in lines:
        kind, rest = (open_end, line) if open_end else _told_apart(line)
        cell.python.append(rest if kind is _PYTHON else "")
        cell.shell.append(rest if kind is _SHELL else "")
        open_end = kind if kind is not _PYTHON and line.endswith("\\") else None
    return cell if _is_python(cell.python) else replace(cell, python=[""] * len(lines))


def _told_apart(line: str) -> tuple[str, str]:
    """Return who reads a line, and what of it."""
    if found := _BEFORE_PYTHON.match(line):
        return _PYTHON, line[: len(line) - len(line.lstrip())] + line[found.end() :]
    for pattern, text in _SHELL_LINES:
        if found := pattern.fullmatch(line):
            return _SHELL, text(found)
    return (_NEITHER, "") if _OTHERS.match(line) else (_PYTHON, line)


def _is_python(lines: list[str]) -> bool:
    """Tell whether a cell can be read; one that cannot shall not keep the others from being read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
