"""Shell scripts and Dockerfiles of a project, as their lines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from hvd_kernel.jobs.shell_words import join
from hvd_kernel.launch.doctor import lines, packages, variables
from hvd_kernel.launch.doctor.finding import Finding, Verdict

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_PAIR = re.compile(r"""([A-Za-z_]\w*)=("[^"]*"|'[^']*'|\S*)""")
_HOROVODS_IMAGE = re.compile(r"(?:^|/)horovod(?:[/:@-]|$)")
_PYTHON_IMAGE = re.compile(r"(?:\S*/)?python:([0-9.]+)")
_IMAGE = f"use an image with Python {packages.PYTHON} and torch {packages.TORCH} or newer; install hvd_kernel in it"
_FLAGS = re.compile(r"^(?:--\S+\s+)+")


def shell(text: str, name: str) -> list[Finding]:
    """Read a shell script: launch, batch or setup."""
    return [each for number, line in _joined(text) for each in lines.findings(line, name, number)]


def dockerfile(text: str, name: str) -> list[Finding]:
    """Read a Dockerfile: its image, what it builds, its environment, what it starts."""
    found: list[Finding] = []
    for number, line in _joined(text):
        parts = _INSTRUCTION.fullmatch(line)
        judge = _INSTRUCTIONS.get(parts[1].upper()) if parts else None
        if parts and judge:
            found += judge(_FLAGS.sub("", parts[2]).strip(), name, number)
    return found


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with the number of their first, those with a backslash at their end joined; no comments."""
    first, parts = 1, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        first = first if parts else number
        parts.append(line.rstrip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            yield first, " ".join(parts)
            parts = []
    if parts:
        yield first, " ".join(parts)


def _from(text: str, name: str, number: int) -> list[Finding]:
    image = text.partition(" ")[0]
    if _HOROVODS_IMAGE.search(image):
        return [Finding(name, number, f"FROM {image}", Verdict.LINE, "this image contains Horovod", _IMAGE)]
    python = _PYTHON_IMAGE.match(image)
    return packages.of(f"python=={python[1]}", name, number) if python else []


def _env(text: str, name: str, number: int) -> list[Finding]:
    pairs = _PAIR.findall(text) if "=" in text.partition(" ")[0] else [text.partition(" ")[::2]]
    return [each for key, value in pairs for each in variables.of(key, value.strip("\"' "), name, number)]


def _command(text: str, name: str, number: int) -> list[Finding]:
    """Read what is run: a shell's line, or a list of words in JSON."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    if isinstance(listed, list) and listed and all(isinstance(word, str) for word in listed):
        text = join(listed)
    return lines.findings(text, name, number)


_INSTRUCTIONS: dict[str, Callable[[str, str, int], list[Finding]]] = {
    "FROM": _from,
    "ENV": _env,
    "ARG": _env,
    "RUN": _command,
    "CMD": _command,
    "ENTRYPOINT": _command,
}
