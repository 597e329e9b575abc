"""Shell lines of a project: mpirun and horovodrun by our readers, pip, what starts ranks otherwise, variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.jobs.readers import mpirun
from hvd_kernel.jobs.shell_words import join
from hvd_kernel.jobs.spec import JobError
from hvd_kernel.jobs.tables import programs
from hvd_kernel.launch.cli import flags
from hvd_kernel.launch.doctor import packages, variables
from hvd_kernel.launch.doctor.finding import Finding, Verdict, short

_SKIPPED = {"exec", "sudo", "-E", "env", "time", "nohup", "command", "then", "do", "else", "if", "while", "!", "{", "("}
_SHELLS = {"sh", "bash", "/bin/sh", "/bin/bash"}
_AROUND = {"docker", "nvidia-docker", "podman", "singularity", "apptainer", "kubectl", "ssh", "bsub"}
_NAMES_FILES = {"--hostfile", "-hostfile", "--config-file", "--output-filename"}
_ASKS = {"-h", "--help", "-v", "--version", "-cb", "--check-build"}
_INSTALLERS = {"pip", "pip3", "uv", "conda", "mamba", "micromamba", "poetry"}
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_EXPANDED = re.compile(r"\$\([^()]*\)|\$\{[^{}]*\}|\$\w+|`[^`]*`")
_UNREAD = "the values of its variables are known only when it runs"
_DESCRIPTOR = re.compile(r"(?<!\S)[0-9]+(?=[<>])")
_DEPTH = 4


def findings(line: str, name: str, number: int, depth: int = 0) -> list[Finding]:
    """Return what there is to say on one line of a shell, its continuations joined."""
    found: list[Finding] = []
    for words in _commands(line):
        rest = list(words)
        while rest and (rest[0] in _SKIPPED or _ASSIGNED.fullmatch(rest[0])):
            found += _assigned(rest.pop(0), name, number)
        if rest[:1] == ["export"] or rest[:1] == ["declare"]:
            found += [each for word in rest[1:] for each in _assigned(word, name, number)]
        elif rest:
            found += _called(rest, name, number, depth)
    return found


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command, without what is written to or read from files."""
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


def _assigned(word: str, name: str, number: int) -> list[Finding]:
    found = _ASSIGNED.fullmatch(word)
    return variables.of(found[1], found[2], name, number) if found else []


def _called(words: list[str], name: str, number: int, depth: int) -> list[Finding]:
    program = words[0].rpartition("/")[2]
    if depth < _DEPTH and (words[0] in _SHELLS or program in _AROUND):
        return _inside(words, name, number, depth)
    for known, judge in _PROGRAMS:
        if program in known:
            return judge(words, name, number)
    return []


def _inside(words: Sequence[str], name: str, number: int, depth: int) -> list[Finding]:
    """Return the findings on what a shell, a container or ssh is told to run."""
    at = next((at for at, word in enumerate(words) if at and word.rpartition("/")[2] in programs.ALL), 0)
    if at:
        return findings(join(list(words[at:])), name, number, depth + 1)
    return [each for word in words[1:] if " " in word for each in findings(word, name, number, depth + 1)]


def _mpirun(words: list[str], name: str, number: int) -> list[Finding]:
    line = " ".join(words)
    remedy = "put `hvdrun --` in front of it, or use `hvdrun --install-mpirun DIR` and put DIR first in PATH"
    try:
        said = mpirun.parse(join([_EXPANDED.sub("1", word) for word in words]), "it")
    except JobError as error:
        if _EXPANDED.search(line):
            return [Finding(name, number, short(line), Verdict.LINE, _UNREAD, remedy, "mpirun")]
        return [Finding(name, number, short(line), Verdict.NOT, "hvdrun cannot read it", str(error).partition(": ")[2])]
    found = [Finding(name, number, short(line), Verdict.LINE, "hvdrun reads it unchanged", remedy, "mpirun")]
    for each in said.environment:
        found += variables.of(each.name, each.value, name, number) if each.value is not None else []
    for warning in said.warnings:
        what, _, why = warning.partition(" is ignored: ")
        found += [Finding(name, number, what, Verdict.NOTE, f"without effect: {why}")] if why else []
    return found


def _horovodrun(words: list[str], name: str, number: int) -> list[Finding]:
    what = short(" ".join(words))
    found = Finding(name, number, what, Verdict.RUNS)
    if words[0].rpartition("/")[2] != "hvdrun":
        remedy = "`hvdrun --install-horovodrun` once, or write hvdrun in its place"
        found = Finding(name, number, what, Verdict.LINE, "hvdrun has its flags", remedy, "horovodrun")
    if words[1:2] in (["job"], ["doctor"]) or _ASKS.intersection(words):
        return [found]
    try:
        flagged, _ = flags.split(words[1:])
        request = flags.parse([*_known(flagged), "--", "true"])
    except (UsageError, ConfigError) as error:
        return [Finding(name, number, what, Verdict.NOT, "hvdrun refuses it", str(error).removeprefix("hvdrun: "))]
    return [found, *(Finding(name, number, what, Verdict.NOTE, each) for each in request.warnings)]


def _known(flagged: Sequence[str]) -> Iterator[str]:
    """Yield flags but those that name files, or have values that only a shell knows."""
    at = 0
    while at < len(flagged):
        word, following = flagged[at], [each for each in flagged[at + 1 : at + 2] if not each.startswith("-")]
        unknown = word.partition("=")[0] in _NAMES_FILES or any(_EXPANDED.search(each) for each in (word, *following))
        size = 1 + len(following)
        yield from () if unknown else flagged[at : at + size]
        at += size


def _installer(words: list[str], name: str, number: int) -> list[Finding]:
    if "install" not in words and "add" not in words and "create" not in words:
        return []
    return [each for word in words[1:] if not word.startswith("-") for each in packages.of(word, name, number)]


def _python(words: list[str], name: str, number: int) -> list[Finding]:
    if words[1:3] == ["-m", "pip"]:
        return _installer(words[2:], name, number)
    if words[1:3] == ["-m", "horovod.runner.launch"]:
        return _horovodrun(["horovodrun", *words[3:]], name, number)
    return _starter(words, name, number) if any(word.endswith(".py") for word in words) else []


def _starter(words: list[str], name: str, number: int) -> list[Finding]:
    if not any(word.endswith(".py") or word.startswith("python") for word in words):
        return []
    said, remedy = "`import horovod` is not known there", "`hvdrun --install-horovod` once"
    return [Finding(name, number, short(" ".join(words)), Verdict.LINE, said, remedy, "starter")]


_PYTHONS = {"python", "python3", "python3.11", "python3.12", "python3.13", "python2", "python3.8", "python3.9"}
_PROGRAMS: tuple[tuple[frozenset[str] | set[str], Callable[[list[str], str, int], list[Finding]]], ...] = (
    (programs.MPI, _mpirun),
    (programs.HOROVOD, _horovodrun),
    (_INSTALLERS, _installer),
    (_PYTHONS, _python),
    ({"srun", "jsrun", "torchrun"}, _starter),
)
"""Programs -> what judges a line that calls one of them."""
