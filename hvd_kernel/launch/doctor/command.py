"""``hvdrun doctor train.py|DIR``: the migration report of a project and of this environment's variables.

The files of a project have their readers here, also notebooks, files of continuous integration and job files, which
contain Python or shell lines.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import sys
import tokenize
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

from hvd_kernel.compat import shim
from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs import documents, formats
from hvd_kernel.jobs.spec import JobError
from hvd_kernel.launch.doctor import ignoring, python_code, shell
from hvd_kernel.launch.doctor.finding import (
    VARIABLE_PREFIX,
    Finding,
    Reader,
    Verdict,
    requirement_findings,
    variable_findings,
)
from hvd_kernel.launch.doctor.framework_rules import LEGACY_KERAS, NEEDS_KERAS_3, NEEDS_PROJECT

_EXIT_CHANGES = 1
_SCRIPT_HEAD = 4096
_MARKS = {Verdict.RUNS: "ok", Verdict.NOTE: "note", Verdict.LINE: "LINE", Verdict.NOT: "NOT", Verdict.UNSURE: "????"}
_NOTHING = "nothing of Horovod's was found"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"hvdrun doctor: {message}. Write hvdrun doctor train.py, or hvdrun doctor DIR")


def main(words: Sequence[str]) -> int:
    """Print the report; return 0 only if everything was read and runs unchanged."""
    arguments = _parser().parse_args(words)
    root = Path(arguments.path)
    paths = files(root)
    texts, problems = _texts(paths)
    folder = root if root.is_dir() else root.parent
    findings = ignoring.kept([*problems, *findings_of(texts, frozenset(_installed()))], texts, folder)
    for name in sorted(os.environ):
        findings += variable_findings(name, os.environ[name], "environment", 0)
    as_json = arguments.format == "json"
    sys.stdout.write(report_json(findings, [*map(str, paths)]) if as_json else report_text(findings, len(paths)))
    return 0 if _runs_unchanged(findings) else _EXIT_CHANGES


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "hvdrun doctor",
        description="report what of a Horovod project runs unchanged, and what has to be changed",
        epilog="Exit status 0: all of it was read and runs unchanged. %%hvd doctor in a notebook checks the machine.",
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="train.py|DIR", help="a script with the files beside it, or a project's folder")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser


def _installed() -> Iterator[str]:
    """Yield which of Horovod's names this environment already provides."""
    has_shim = shim.installed() is not None
    if has_shim or any((folder / shim.PTH_FOR_ALL).exists() for folder in shim.folders()):
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
    return not any(finding.verdict in {Verdict.LINE, Verdict.NOT, Verdict.UNSURE} for finding in findings)


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
    if _runs_unchanged(findings):
        return f"{read}: all of it runs as it is"
    runs, changes, missing = counts[Verdict.RUNS] + counts[Verdict.NOTE], counts[Verdict.LINE], counts[Verdict.NOT]
    unsure = counts[Verdict.UNSURE]
    parts = [f"{runs} run{'s as it is' if runs == 1 else ' as they are'}"] if runs else []
    parts += [f"{changes} need{'s' * (changes == 1)} a line"] if changes else []
    parts += [f"{missing} {'is' if missing == 1 else 'are'} not here"] if missing else []
    parts += [f"{unsure} {'is' if unsure == 1 else 'are'} unsure"] if unsure else []
    return f"{read}, {plural(len(findings), 'finding')}: {', '.join(parts)}"


_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", "env"}
_HIDDEN_FOLDERS = {".github", ".circleci"}  # the only hidden ones that are read
_MAX_BYTES = 1 << 20
_MAX_FILES = 5000


def files(path: Path) -> list[Path]:
    """Return the files to read: those of a folder that have a reader; a file and, except Python files, its siblings.

    Raises
    ------
    UsageError
        There is no such file or folder, or nothing in it that has a reader.
    """
    if path.is_dir():
        paths = sorted(file for file in _walk(path) if _readers(str(file)))
    elif path.is_file():
        siblings = (file for file in sorted(path.parent.iterdir()) if file.is_file() and file.suffix != ".py")
        paths = [path, *(file for file in siblings if _readers(str(file)) and file != path)]
    else:
        raise UsageError(f"hvdrun doctor: there is no {path}: name a script, or a project's folder")
    if not paths:
        raise UsageError(f"hvdrun doctor: {path} has no Python file, notebook, script, Dockerfile or list of packages")
    if len(paths) > _MAX_FILES:
        raise UsageError(TOO_MANY.format(path=path, count=len(paths), most=_MAX_FILES))
    return paths


TOO_MANY = "hvdrun doctor: {path} has {count} files to read, and {most} are allowed: name a folder of it"


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        visible = [name for name in folders if not name.startswith(".") or name in _HIDDEN_FOLDERS]
        candidates = [name for name in visible if name not in _SKIPPED_FOLDERS]
        folders[:] = [name for name in candidates if not Path(root, name, "pyvenv.cfg").exists()]
        yield from (Path(root, name) for name in names)


def _texts(paths: Iterable[Path]) -> tuple[list[tuple[str, str]], list[Finding]]:
    """Return the texts of files by name, and a finding for each file that cannot be read."""
    texts, problems = [], []
    for path in paths:
        try:
            texts.append((str(path), text_of(path)))
        except ValueError as error:
            detail, remedy = python_code.NOT_READ.format(reason=error), python_code.NOT_TEXT
            problems.append(Finding(str(path), 1, "file", Verdict.UNSURE, detail, remedy))
    return texts, problems


def text_of(path: Path) -> str:
    """Return a file's text, of a Python file in the encoding that it declares.

    Raises
    ------
    ValueError
        The file cannot be read, is not text, or is too long to be written by hand; the message is the reason.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes, and {_MAX_BYTES} are allowed")
        if path.suffix != ".py":
            return path.read_text()
        with tokenize.open(path) as file:
            return file.read()
    except OSError as error:
        raise ValueError(str(error.strerror).lower()) from None
    except (UnicodeDecodeError, SyntaxError):
        raise ValueError("it is not text in UTF-8") from None


def findings_of(texts: Iterable[tuple[str, str]], installed: Collection[str] = ()) -> list[Finding]:
    """Return the findings in texts, each with its file's name.

    Parameters
    ----------
    texts
        Names and texts.
    installed
        What this environment already has: "import" (of horovod, in every Python), "horovodrun", "mpirun", "horovod"
        (the distribution of that name).

    Findings on programs that Python scripts start count where the script uses Horovod, those on frameworks in a project
    that uses it, and those on Keras 3 unless a text of the project sets TF_USE_LEGACY_KERAS.
    """
    texts = list(texts)
    sources = [(name, text, _readers(name)) for name, text in texts]
    results = [finding for name, text, readers in sources for reader in readers for finding in reader(text, name)]
    has_python = any({python_code.findings, notebook} & {*readers} for _, _, readers in sources)
    uses_horovod = any("horovod" in finding.subject for finding in results if finding.needs != "starter")
    # A Python project without Horovod may use mpirun and srun for programs of its own.
    keep_starters = uses_horovod or not has_python
    dropped = set() if keep_starters else {"starter", "mpirun"}
    dropped |= set() if uses_horovod else {NEEDS_PROJECT, NEEDS_KERAS_3}
    dropped |= {NEEDS_KERAS_3} if any(LEGACY_KERAS in text for _, text in texts) else set()
    scripts = python_code.scripts_with_horovod({name: text for name, text in texts if name.endswith(".py")})
    kept = [finding for finding in results if finding.needs not in dropped and not _starts_other(finding, scripts)]
    return [_resolve(finding, installed) for finding in kept]


def _starts_other(finding: Finding, scripts: Mapping[str, bool]) -> bool:
    """Return whether a finding is on a line that starts scripts of the project without Horovod, or of packaging."""
    if finding.needs != "starter":
        return False
    names = [word.rpartition("/")[2] for word in finding.subject.split() if word.endswith(".py")]
    return bool(names) and all(name in _PACKAGING or scripts.get(name) is False for name in names)


_PACKAGING = {"setup.py", "get-pip.py", "manage.py", "conf.py"}
"""Scripts that prepare an environment, or serve; they train nothing."""


def _resolve(finding: Finding, installed: Collection[str]) -> Finding:
    """Return the finding, with the verdict RUNS if what it needs is installed."""
    needs = "import" if finding.needs == "starter" else finding.needs
    if not needs or needs not in installed:
        return finding
    return replace(finding, verdict=Verdict.RUNS, detail="", remedy="")


# Lists of requirements

_QUOTED = re.compile(r"""["']([^"'\n]{1,200})["']""")
_POETRY = re.compile(r"""^\s*["']?(horovod|torch)["']?\s*=\s*(?=["'{])[^"'\n]*["']?\^?~?([\w.<>=!,* ]*)""")


def requirement_lines(text: str, name: str) -> list[Finding]:
    """Return the findings in requirements.txt, setup.cfg or environment.yml: a requirement begins its line."""
    return [
        finding
        for number, line in enumerate(text.splitlines(), 1)
        for finding in requirement_findings(line.strip().removeprefix("- ").strip(" \"'"), name, number)
    ]


def quoted_requirements(text: str, name: str) -> list[Finding]:
    """Return the findings in pyproject.toml or setup.py: a requirement is a string of its own, with Poetry a key."""
    lines = enumerate(text.splitlines(), 1)
    return [finding for number, line in lines for finding in _quoted_requirements(line, name, number)]


def _quoted_requirements(line: str, name: str, number: int) -> Iterator[Finding]:
    poetry = _POETRY.match(line)
    if poetry is not None:
        spec = poetry[2] if poetry[2][:1] in "<>=!" else ""
        yield from requirement_findings(poetry[1] + spec, name, number)
        return
    for requirement in _QUOTED.findall(line):
        if requirement != "python":  # a word of many lists
            yield from requirement_findings(requirement, name, number)


# Job files of platforms


_STARTS_RANKS = re.compile(r"\b(?:mpirun|mpiexec|horovodrun|hvdrun|horovod|HVD_\w+)\b")
"""Most Jobs and stack files have nothing to do with Horovod: one that has starts ranks, or names it."""


def job_file(text: str, name: str) -> list[Finding]:
    """Return the findings in a YAML file; none unless a reader of ``hvdrun job`` recognizes it."""
    for reader in filter(attrgetter("is_yaml"), formats.READERS):
        try:
            if not reader.matches(text, name) or (reader.is_common and not _STARTS_RANKS.search(text)):
                continue
            spec = formats.read(text, name, reader.kind)
        except JobError as error:
            reason = str(error).removeprefix(f"{name}:").strip()
            return [Finding(name, 1, reader.kind, Verdict.NOT, "hvdrun cannot read it", reason)]
        run = f"hvdrun job run {name}"
        result = Finding(name, 1, f"{reader.kind}, {spec.size} ranks", Verdict.RUNS, f"`{run}` runs it")
        return [result, *(Finding(name, 1, reader.kind, Verdict.NOTE, warning) for warning in spec.run_warnings)]
    return []


# Files of continuous integration (GitHub, GitLab, CircleCI): their shell lines, images and variables

_CI_PATTERNS = ".github/*.yml .github/*.yaml .gitlab-ci.yml .gitlab-ci.yaml .circleci/*.yml .circleci/*.yaml"
_BLOCK_MARKS = ("|", ">")


def workflow(text: str, name: str) -> list[Finding]:
    """Return the findings in a CI file."""
    try:
        document = documents.parse(text, name)
    except JobError as error:
        detail = python_code.NOT_READ.format(reason=str(error).removeprefix(f"{name}:").rstrip("."))
        return [Finding(name, 1, "YAML", Verdict.UNSURE, detail, python_code.NOT_TEXT, python_code.needs_of(text))]
    lines = text.splitlines()

    def line_of(path: documents.Path) -> int:
        line, column = document.marks[path]
        return line + lines[line - 1][column - 1 :].startswith(_BLOCK_MARKS)  # a block's text begins below its mark

    results = [
        replace(finding, line=finding.line + line_of(path) - 1)
        for path, value, judge in _workflow_texts(document.value, ())
        for finding in judge(value, name)
    ]
    return sorted(results, key=lambda finding: finding.line)


def _image(text: str, name: str) -> list[Finding]:
    return shell.dockerfile(f"FROM {text}", name)


_JUDGES: dict[str, Callable[[str, str], list[Finding]]] = {
    **dict.fromkeys(("run", "script", "before_script", "after_script", "command"), shell.script),
    **dict.fromkeys(("image", "container"), _image),
}
_Judged = tuple[documents.Path, str, Callable[[str, str], list[Finding]]]


def _workflow_texts(value: Any, path: documents.Path) -> Iterator[_Judged]:
    """Yield each text with the function that judges it, chosen by its key or by the key of its list."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _workflow_texts(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _workflow_texts(child, (*path, index))
    elif path and str(path[-1]).startswith(VARIABLE_PREFIX):
        variable = str(path[-1])
        yield path, str(value), lambda text, name: variable_findings(variable, text, name, 1)
    elif isinstance(value, str):
        key = next((str(step) for step in reversed(path) if isinstance(step, str)), "")
        if key in _JUDGES:
            yield path, value, _JUDGES[key]


# Notebooks: their cells as one Python program, with the lines of IPython that a shell runs

_SHELL_MAGICS = {"%%bash", "%%sh"}
_PYTHON_MAGIC = re.compile(r"\s*%{1,2}(?:time|timeit|prun|memit|capture)\b(?:\s+-\S+)*\s*")
_ENV_MAGIC = re.compile(r"\s*%(?:set_)?env\s+(\w+)(?:\s*=\s*|\s+)(\S.*)")
_SHELL_ESCAPE = re.compile(r"\s*(?:[\w, ]+=\s*)?!{1,2}(?P<line>.*)")
_INSTALL_MAGIC = re.compile(r"\s*%(?P<line>(?:pip|conda|mamba|uv)\s.*)")
_OTHER_SYNTAX = re.compile(r"\s*[%?!]|.*[\w\])]\?{1,2}\s*$")
_PYTHON, _SHELL, _NEITHER = "python", "shell", "neither"
_SHELL_LINES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_ENV_MAGIC, lambda match: f"export {match[1]}={match[2]}"),
    (_INSTALL_MAGIC, lambda match: match["line"]),
    (_SHELL_ESCAPE, lambda match: match["line"]),
)


@dataclass(frozen=True)
class _Cell:
    """A cell's lines for Python and for a shell; both lists are as long as the cell, "" replacing the other's lines."""

    number: int
    python: list[str]
    shell: list[str]
    unparsed: str = ""


def notebook(text: str, name: str) -> list[Finding]:
    """Return the findings in a notebook, each with the number of its cell, from 1, and its line in the cell."""
    cells = list(_cells(text))
    if not cells and not _has_cells(text):
        detail = python_code.NOT_READ.format(reason="it is not a notebook's JSON")
        return [Finding(name, 1, "notebook", Verdict.UNSURE, detail, python_code.NOT_TEXT, python_code.needs_of(text))]
    locations = [(cell.number, line) for cell in cells for line in range(1, len(cell.python) + 1)]
    program = "\n".join(line for cell in cells for line in cell.python)
    results = []
    for finding in python_code.findings(program, name):
        number, line = locations[finding.line - 1]
        results.append(replace(finding, cell=number, line=line))
    for cell in cells:
        if cell.unparsed:
            detail = python_code.NOT_READ.format(reason=cell.unparsed)
            finding = Finding(name, 1, "cell", Verdict.UNSURE, detail, python_code.NOT_PYTHON, NEEDS_PROJECT)
            results.append(replace(finding, cell=cell.number))
        results += [replace(finding, cell=cell.number) for finding in shell.script("\n".join(cell.shell), name)]
    return sorted(results, key=lambda finding: (finding.cell, finding.line))


def _has_cells(text: str) -> bool:
    """Return whether a text is a notebook, also one without cells of code."""
    try:
        return isinstance(json.loads(text)["cells"], list)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _cells(text: str) -> Iterator[_Cell]:
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    for number, cell in enumerate(cells if isinstance(cells, list) else (), 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source")
            parts = [part for part in (source if isinstance(source, list) else [source]) if isinstance(part, str)]
            yield _cell(number, "".join(parts).splitlines())


def _cell(number: int, lines: list[str]) -> _Cell:
    first = lines[0].split() if lines else []
    if first[:1] and first[0] in _SHELL_MAGICS:
        return _Cell(number, [""] * len(lines), ["", *lines[1:]])
    cell = _Cell(number, [], [])
    continued = None
    for line in lines:
        kind, rest = (continued, line) if continued else _classify(line)
        cell.python.append(rest if kind is _PYTHON else "")
        cell.shell.append(rest if kind is _SHELL else "")
        continued = kind if kind is not _PYTHON and line.endswith("\\") else None
    # The cells are parsed as one program: one with a syntax error would hide the findings of all.
    reason = _mistake(cell.python)
    if not reason:
        return cell
    is_other = lines[0].startswith("%%") and not _PYTHON_MAGIC.match(lines[0])  # a file, HTML, another language
    return replace(cell, python=[""] * len(lines), unparsed="" if is_other else reason)


def _classify(line: str) -> tuple[str, str]:
    """Return which language a line is in, and its text in that language."""
    if match := _PYTHON_MAGIC.match(line):
        return _PYTHON, line[: len(line) - len(line.lstrip())] + line[match.end() :]
    for pattern, text in _SHELL_LINES:
        if match := pattern.fullmatch(line):
            return _SHELL, text(match)
    return (_NEITHER, "") if _OTHER_SYNTAX.match(line) else (_PYTHON, line)


def _mistake(lines: list[str]) -> str:
    """Return why lines are not Python, or an empty string."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except SyntaxError as error:
        return error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return ""


_READERS: tuple[tuple[str, tuple[Reader, ...]], ...] = (
    (_CI_PATTERNS, (workflow,)),
    ("setup.py", (python_code.findings, quoted_requirements)),
    ("*.py", (python_code.findings,)),
    ("*.ipynb", (notebook,)),
    ("*requirements*.txt constraints*.txt requirements*.in setup.cfg", (requirement_lines,)),
    ("environment*.yml environment*.yaml conda*.yml conda*.yaml", (requirement_lines,)),
    ("pyproject.toml Pipfile", (quoted_requirements,)),
    ("Dockerfile* *.dockerfile Containerfile*", (shell.dockerfile,)),
    (f"*.sh *.bash {formats.SCRIPTS} *.env .env Makefile", (shell.script,)),
    ("*.yml *.yaml", (job_file,)),
)
"""Patterns of file names, of paths if they contain a slash -> readers; the first match counts."""


def _readers(name: str) -> tuple[Reader, ...]:
    """Return the readers of a file of that name, which may include its folders."""
    matching = (readers for patterns, readers in _READERS if any(_fits(name, pattern) for pattern in patterns.split()))
    return next(matching, ())


def _fits(name: str, pattern: str) -> bool:
    return fnmatch(f"/{name}", f"*/{pattern}") if "/" in pattern else fnmatch(Path(name).name, pattern)
