"""Shell lines, scripts and Dockerfiles of a project.

mpirun and horovodrun lines are parsed by our own readers; further findings concern pip, other launchers and variables.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.jobs.readers import mpirun
from hvd_kernel.jobs.shell_lines import join
from hvd_kernel.jobs.spec import JobError
from hvd_kernel.launch.cli import flags
from hvd_kernel.launch.doctor.finding import (
    MIN_PYTHON,
    MIN_TORCH,
    Finding,
    Verdict,
    requirement_findings,
    short,
    variable_findings,
)

_PREFIXES = {"exec", "sudo", "-E", "env", "time", "nohup", "command"}
_KEYWORDS = {"then", "do", "else", "if", "while", "!", "{", "("}
_SHELLS = {"sh", "bash", "/bin/sh", "/bin/bash"}
_WRAPPERS = {"docker", "nvidia-docker", "podman", "singularity", "apptainer", "kubectl", "ssh", "bsub"}
_FILE_FLAGS = {"--hostfile", "-hostfile", "--config-file", "--output-filename"}
_INFO_FLAGS = {"-h", "--help", "-v", "--version", "-cb", "--check-build"}
_INSTALLERS = {"pip", "pip3", "uv", "conda", "mamba", "micromamba", "poetry"}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_EXPANSION = re.compile(r"\$\([^()]*\)|\$\{[^{}]*\}|\$\w+|`[^`]*`")
_UNKNOWN_VALUES = "the values of its variables are known only when it runs"
_DESCRIPTOR = re.compile(r"(?<!\S)[0-9]+(?=[<>])")
_MAX_DEPTH = 4

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_PAIR = re.compile(r"""([A-Za-z_]\w*)=("[^"]*"|'[^']*'|\S*)""")
_HOROVOD_IMAGE = re.compile(r"(?:^|/)horovod(?:[/:@-]|$)")
_PYTHON_IMAGE = re.compile(r"(?:\S*/)?python:([0-9.]+)")
_IMAGE_REMEDY = f"use an image with Python {MIN_PYTHON} and torch {MIN_TORCH} or newer; install hvd_kernel in it"
_INSTRUCTION_FLAGS = re.compile(r"^(?:--\S+\s+)+")


def script(text: str, name: str) -> list[Finding]:
    """Return the findings in a shell script: launch, batch or setup."""
    return [finding for number, line in _logical_lines(text) for finding in _line(line, name, number)]


def dockerfile(text: str, name: str) -> list[Finding]:
    """Return the findings in a Dockerfile: its image, build steps, environment and command."""
    findings: list[Finding] = []
    for number, line in _logical_lines(text):
        parts = _INSTRUCTION.fullmatch(line)
        judge = _INSTRUCTIONS.get(parts[1].upper()) if parts else None
        if parts and judge:
            findings += judge(_INSTRUCTION_FLAGS.sub("", parts[2]).strip(), name, number)
    return findings


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines without comments, each with the number of its first; a trailing backslash joins lines."""
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


# Dockerfiles: the arguments of one instruction


def _from(text: str, name: str, number: int) -> list[Finding]:
    image = text.partition(" ")[0]
    if _HOROVOD_IMAGE.search(image):
        return [Finding(name, number, f"FROM {image}", Verdict.LINE, "this image contains Horovod", _IMAGE_REMEDY)]
    python = _PYTHON_IMAGE.match(image)
    return requirement_findings(f"python=={python[1]}", name, number) if python else []


def _env(text: str, name: str, number: int) -> list[Finding]:
    pairs = _PAIR.findall(text) if "=" in text.partition(" ")[0] else [text.partition(" ")[::2]]
    return [finding for key, value in pairs for finding in variable_findings(key, value.strip("\"' "), name, number)]


def _command(text: str, name: str, number: int) -> list[Finding]:
    """Return the findings on a command: a shell line, or a JSON list of words."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        words = None
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        text = join(words)
    return _line(text, name, number)


_INSTRUCTIONS: dict[str, Callable[[str, str, int], list[Finding]]] = {
    "FROM": _from,
    "ENV": _env,
    "ARG": _env,
    "RUN": _command,
    "CMD": _command,
    "ENTRYPOINT": _command,
}


# One line of a shell, its continuations joined


def _line(line: str, name: str, number: int, depth: int = 0) -> list[Finding]:
    findings: list[Finding] = []
    for command in _commands(line):
        words = list(command)
        while words and (words[0] in _PREFIXES or words[0] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[0])):
            findings += _assignment(words.pop(0), name, number)
        if words[:1] == ["export"] or words[:1] == ["declare"]:
            findings += [finding for word in words[1:] for finding in _assignment(word, name, number)]
        elif words:
            findings += _call(words, name, number, depth)
    return findings


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command, without redirections."""
    lexer = shlex.shlex(_DESCRIPTOR.sub("", line), posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # a quote that is not closed
        words = line.split()
    command: list[str] = []
    redirected = False
    for word in [*words, ";"]:
        if set(word) <= set(";&|"):
            yield command
            command, redirected = [], False
        redirected = redirected or word.startswith(("#", "<", ">"))
        if not redirected and set(word) - set(";&|"):
            command.append(word)


def _assignment(word: str, name: str, number: int) -> list[Finding]:
    match = _ASSIGNMENT.fullmatch(word)
    return variable_findings(match[1], match[2], name, number) if match else []


def _call(words: list[str], name: str, number: int, depth: int) -> list[Finding]:
    program = words[0].rpartition("/")[2]
    if depth < _MAX_DEPTH and (words[0] in _SHELLS or program in _WRAPPERS):
        return _nested(words, name, number, depth)
    for programs_of_kind, judge in _PROGRAMS:
        if program in programs_of_kind:
            return judge(words, name, number)
    return []


def _nested(words: Sequence[str], name: str, number: int, depth: int) -> list[Finding]:
    """Return the findings on the command that a shell, a container or ssh runs."""
    start = next((at for at, word in enumerate(words) if at and word.rpartition("/")[2] in mpirun.PROGRAMS), 0)
    if start:
        return _line(join(list(words[start:])), name, number, depth + 1)
    return [finding for word in words[1:] if " " in word for finding in _line(word, name, number, depth + 1)]


def _mpirun(words: list[str], name: str, number: int) -> list[Finding]:
    line = " ".join(words)
    remedy = "put `hvdrun --` in front of it, or use `hvdrun --install-mpirun DIR` and put DIR first in PATH"
    try:
        job = mpirun.parse(join([_EXPANSION.sub("1", word) for word in words]), "it")
    except JobError as error:
        if _EXPANSION.search(line):
            return [Finding(name, number, short(line), Verdict.LINE, _UNKNOWN_VALUES, remedy, "mpirun")]
        return [Finding(name, number, short(line), Verdict.NOT, "hvdrun cannot read it", str(error).partition(": ")[2])]
    findings = [Finding(name, number, short(line), Verdict.LINE, "hvdrun reads it unchanged", remedy, "mpirun")]
    for variable in job.environment:
        if variable.value is not None:
            findings += variable_findings(variable.name, variable.value, name, number)
    for warning in job.warnings:
        subject, _, reason = warning.partition(" is ignored: ")
        findings += [Finding(name, number, subject, Verdict.NOTE, f"without effect: {reason}")] if reason else []
    return findings


def _horovodrun(words: list[str], name: str, number: int) -> list[Finding]:
    subject = short(" ".join(words))
    finding = Finding(name, number, subject, Verdict.RUNS)
    if words[0].rpartition("/")[2] != "hvdrun":
        remedy = "`hvdrun --install-horovodrun` once, or write hvdrun in its place"
        finding = Finding(name, number, subject, Verdict.LINE, "hvdrun has its flags", remedy, "horovodrun")
    if words[1:2] in (["job"], ["doctor"]) or _INFO_FLAGS.intersection(words):
        return [finding]
    try:
        flag_words, _ = flags.split(words[1:])
        request = flags.parse([*_literal_flags(flag_words), "--", "true"])
    except (UsageError, ConfigError) as error:
        return [Finding(name, number, subject, Verdict.NOT, "hvdrun refuses it", str(error).removeprefix("hvdrun: "))]
    return [finding, *(Finding(name, number, subject, Verdict.NOTE, warning) for warning in request.warnings)]


def _literal_flags(words: Sequence[str]) -> Iterator[str]:
    """Yield the flags with their values, except those that name files or have values only a shell knows."""
    at = 0
    while at < len(words):
        flag, value = words[at], [word for word in words[at + 1 : at + 2] if not word.startswith("-")]
        names_file = flag.partition("=")[0] in _FILE_FLAGS
        size = 1 + len(value)
        if not names_file and not any(_EXPANSION.search(word) for word in (flag, *value)):
            yield from words[at : at + size]
        at += size


def _installer(words: list[str], name: str, number: int) -> list[Finding]:
    if "install" not in words and "add" not in words and "create" not in words:
        return []
    packages = [word for word in words[1:] if not word.startswith("-")]
    return [finding for package in packages for finding in requirement_findings(package, name, number)]


def _python(words: list[str], name: str, number: int) -> list[Finding]:
    if words[1:3] == ["-m", "pip"]:
        return _installer(words[2:], name, number)
    if words[1:3] == ["-m", "horovod.runner.launch"]:
        return _horovodrun(["horovodrun", *words[3:]], name, number)
    return _starter(words, name, number) if any(word.endswith(".py") for word in words) else []


def _starter(words: list[str], name: str, number: int) -> list[Finding]:
    if not any(word.endswith(".py") or word.startswith("python") for word in words):
        return []
    detail, remedy = "`import horovod` is not known there", "`hvdrun --install-horovod` once"
    return [Finding(name, number, short(" ".join(words)), Verdict.LINE, detail, remedy, "starter")]


_PYTHONS = {"python", "python3", "python3.11", "python3.12", "python3.13", "python2", "python3.8", "python3.9"}
_PROGRAMS: tuple[tuple[frozenset[str] | set[str], Callable[[list[str], str, int], list[Finding]]], ...] = (
    (mpirun.MPI_PROGRAMS, _mpirun),
    (mpirun.HOROVOD_PROGRAMS, _horovodrun),
    (_INSTALLERS, _installer),
    (_PYTHONS, _python),
    ({"srun", "jsrun", "torchrun"}, _starter),
)
"""Programs -> the function that judges a line that calls one of them."""
