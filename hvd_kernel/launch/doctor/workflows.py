"""Files of continuous integration (GitHub, GitLab, CircleCI): their shell lines, images and variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from hvd_kernel.jobs import documents
from hvd_kernel.jobs.spec import JobError
from hvd_kernel.launch.doctor import scripts, variables
from hvd_kernel.launch.doctor.finding import Finding

PATTERNS = ".github/*.yml .github/*.yaml .gitlab-ci.yml .gitlab-ci.yaml .circleci/*.yml .circleci/*.yaml"
FOLDERS = {".github", ".circleci"}
_BLOCK = ("|", ">")


def findings(text: str, name: str) -> list[Finding]:
    """Read such a file; one that is not YAML says nothing."""
    try:
        document = documents.parse(text, name)
    except JobError:
        return []
    lines = text.splitlines()

    def line_of(path: documents.Path) -> int:
        line, column = document.marks[path]
        return line + lines[line - 1][column - 1 :].startswith(_BLOCK)  # such a text begins below its mark

    found = [
        replace(each, line=each.line + line_of(path) - 1)
        for path, value, judge in _judged(document.value, ())
        for each in judge(value, name)
    ]
    return sorted(found, key=lambda each: each.line)


def _image(text: str, name: str) -> list[Finding]:
    return scripts.dockerfile(f"FROM {text}", name)


_JUDGES: dict[str, Callable[[str, str], list[Finding]]] = {
    **dict.fromkeys(("run", "script", "before_script", "after_script", "command"), scripts.shell),
    **dict.fromkeys(("image", "container"), _image),
}
_Judged = tuple[documents.Path, str, Callable[[str, str], list[Finding]]]


def _judged(value: Any, path: documents.Path) -> Iterator[_Judged]:
    """Yield each text with what judges it: by its own key, or by that of its list."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _judged(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _judged(each, (*path, number))
    elif path and str(path[-1]).startswith(variables.PREFIX):
        variable = str(path[-1])
        yield path, str(value), lambda text, name: variables.of(variable, text, name, 1)
    elif isinstance(value, str):
        key = next((str(step) for step in reversed(path) if isinstance(step, str)), "")
        if key in _JUDGES:
            yield path, value, _JUDGES[key]
