"""Scripts of jobs: batch scripts of LSF (bsub) and Slurm (sbatch), and lines of containers.

A batch script has directives in its head, ``#SBATCH --nodes=2`` or ``#BSUB -n 8``. Of the body, launcher lines (srun,
mpirun, horovodrun, hvdrun) are parsed to steps, ranks and variables; variables and the working directory are read;
other lines become warnings.
Sources: IBM Spectrum LSF 10.1, command reference: bsub; https://slurm.schedmd.com/sbatch.html

Terms.
  line   a parsed launcher line (hvd_kernel.jobs.readers.mpirun.MpirunLine)
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs import shell_lines
from hvd_kernel.jobs.documents import Document, Path
from hvd_kernel.jobs.readers import mpirun
from hvd_kernel.jobs.readers.mpirun import MpirunLine
from hvd_kernel.jobs.shell_lines import ShellWord, refuse_operators, words
from hvd_kernel.jobs.spec import MEBIBYTE, Bounds, JobError, JobSpec, Replica, Resources, Variable, size

_NUMBER = re.compile(r"[1-9][0-9]{0,5}|0", re.ASCII)


class Directive(NamedTuple):
    """A flag: its name without dashes, its value, and its position."""

    flag: str
    value: str
    where: str

    def error(self, problem: str) -> JobError:
        """Return an error about this flag."""
        return JobError(f"{self.where}: {self.flag} {self.value!r} {problem}.")

    def count(self, low: int = 1) -> int:
        """Return the value as an integer.

        Raises
        ------
        JobError
            The value is not an integer, or is below ``low``.
        """
        if not _NUMBER.fullmatch(self.value) or int(self.value) < low:
            raise self.error(f"must be a whole number, at least {low}")
        return int(self.value)

    def bytes(self, unit: int) -> int:
        """Return the value as bytes of memory; a plain number is in units of ``unit`` bytes.

        Raises
        ------
        JobError
            The value is not an amount of memory.
        """
        try:
            return size(self.value, unit=unit)
        except ValueError as error:
            raise JobError(f"{self.where}: {self.flag}: {error}.") from None


class Head(dict[str, Directive]):
    """The flags of a component by name; the last of duplicate flags takes precedence, as in schedulers."""

    def text(self, name: str) -> str:
        """Return a flag's value, or an empty string."""
        return self[name].value if name in self else ""


def of(text: str, mark: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the position and the words of each directive, up to the first command.

    Raises
    ------
    JobError
        A quote is not closed.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(mark):
            where = f"{name}:{number}: {mark}"
            try:
                yield where, shlex.split(line[len(mark) :], comments=True)
            except ValueError as error:
                raise JobError(f"{where}: {str(error).lower()}: close it.") from None
        elif line.strip() and not line.lstrip().startswith("#"):
            return


_T = TypeVar("_T")

_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z)?sh")
_OPTIONS = re.compile(r"-[a-z]*c")
_SECRET = re.compile(r"(?:export\s+)?(?:HVD|HOROVOD)_SECRET_KEY\b")
_OURS = re.compile(
    r"srun(?: --het-group=0-[0-9]+ --cpu-bind=none)?(?: --cpus-per-task=[0-9]+)?"
    r"(?: --ntasks=([1-9][0-9]{0,5}) --distribution=plane=[0-9]+)? ([^-].*)",
    re.DOTALL,
)
_EXPANDED = re.compile(r"[$`]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"$`\\]*\"|\\.", re.DOTALL)
_COUNT = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)
_SHORT_ALONE, _ATTACHED = frozenset("lukKQvsXOHZEI"), 2
_ALONE = {
    *("contiguous", "disable-status", "exact", "exclusive", "interactive", "join", "kill-on-bad-exit", "label"),
    *("no-allocate", "no-kill", "overcommit", "overlap", "oversubscribe", "preserve-env", "pty", "quiet", "reboot"),
    *("quit-on-interrupt", "send-libs", "spread-job", "test-only", "unbuffered", "use-min-nodes", "verbose", "whole"),
}
"""Flags of srun without a value; all others have one."""


def starts_ranks(text: str) -> bool:
    """Return whether a line starts with a launcher."""
    return (
        re.match(r"(?:\S*/)?srun\s", text) is not None or mpirun.matches(text, "") or mpirun.matches_horovod(text, "")
    )


def is_ours(text: str) -> bool:
    """Return whether a line was added by our writers, before or between steps."""
    return (
        text == shell_lines.BARRIER
        or _SECRET.match(text) is not None
        or re.fullmatch(r"set\s+[-+].*", text) is not None
    )


def of_line(text: str, name: str) -> MpirunLine:
    """Parse a launcher's line; any other line is a step.

    Raises
    ------
    JobError
        A flag is unknown, or its value is invalid.
    """
    text = text.removeprefix("exec ")
    if ours := shell_lines.of_hvdrun(text):
        step, np, interfaces = ours
        return MpirunLine("horovodrun", np, interfaces=interfaces, steps=(step,))
    if not starts_ranks(text):
        return MpirunLine(steps=(text,))
    line = _srun(text, name) if re.match(r"(?:\S*/)?srun\s", text) else mpirun.parse(text, name)
    return msgspec.structs.replace(line, steps=tuple(map(shell_lines.unwrapped, line.steps)))


def of_words(command: Sequence[str], name: str) -> MpirunLine:
    """Parse a container's command: a launcher's line, a shell script of such lines, or a step.

    Raises
    ------
    JobError
        See ``of_line``.
    """
    script = _script(command)
    if script is None:
        return of_line(shlex.join(command), name) if command else MpirunLine()
    return of_script(script, name) or MpirunLine(steps=(script,))


def of_script(text: str, name: str) -> MpirunLine | None:
    """Parse a script whose lines all start ranks or change the folder; return None for any other script.

    Raises
    ------
    JobError
        See ``of_line``.
    """
    parsed, workdir = [], ""
    for number, line in shell_lines.logical(text, name):
        if is_ours(line):
            continue
        if folder := moved(line):
            workdir = folder
        elif starts_ranks(line.removeprefix("exec ")):
            parsed.append(of_line(line, f"{name}: line {number} of its script"))
        else:
            return None
    return msgspec.structs.replace(together(parsed), workdir=workdir) if parsed else None


def fit(line: MpirunLine, replicas: Sequence[Replica], document: Document, path: Path) -> int:
    """Return the number of ranks that a line starts on the replicas of a file; 0: one for each slot.

    Raises
    ------
    JobError
        The replicas have fewer slots than ranks; the position is that of the command.
    """
    try:
        return line.fit(replicas)
    except JobError as error:
        raise document.error(path, str(error)) from None


def moved(line: str) -> str:
    """Return the folder of ``cd FOLDER``, or an empty string for any other line."""
    parts = _words(line) if line.startswith("cd ") and not expands(line) else []
    return parts[1] if len(parts) == 2 else ""  # noqa: PLR2004 - cd, the folder


def expands(line: str) -> bool:
    """Return whether a shell would expand a part of the line."""
    return _EXPANDED.search(_QUOTED.sub("", line)) is not None


def together(parsed: Sequence[MpirunLine], slots: int = 0) -> MpirunLine:
    """Merge lines: their steps in order, and the maximum number of ranks, 0 for all ``slots``."""
    whole = any(line.np in {0, slots} for line in parsed)
    most = 0 if whole else max((line.np for line in parsed), default=0)
    fewer = [line for line in parsed if line.np not in {0, slots, most}]
    ignored = [f"`{line.steps[0]}` asks for {plural(line.np, 'rank')}: all run it" for line in fewer if line.steps]
    return MpirunLine(
        parsed[0].kind if parsed else "",
        np=most,
        environment=_unique(variable for line in parsed for variable in line.environment),
        workdir=next((line.workdir for line in parsed if line.workdir), ""),
        interfaces=_unique(interface for line in parsed for interface in line.interfaces),
        steps=tuple(step for line in parsed for step in line.steps),
        warnings=_unique([*(warning for line in parsed for warning in line.warnings), *ignored]),
    )


def _unique(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


def _script(command: Sequence[str]) -> str | None:
    """Return the script of ``sh -c SCRIPT``, ``/bin/bash -ec SCRIPT``."""
    shell = len(command) == 3 and _SHELL.fullmatch(command[0]) and _OPTIONS.fullmatch(command[1])  # noqa: PLR2004
    return command[2] if shell else None


def _srun(text: str, name: str) -> MpirunLine:
    ours = _OURS.fullmatch(text)
    if ours and shell_lines.is_wrapped(ours[2]):
        return MpirunLine("slurm", np=int(ours[1] or 0), steps=(ours[2],))
    line = words(text, name)
    index, np = 1, 0
    while index < len(line) and line[index].value.startswith("-"):
        flag, value, count = _flag(line, index)
        if flag in {"-n", "--ntasks"}:
            if not _COUNT.fullmatch(value):
                raise JobError(f"{name}: {flag} {value}: must be a whole number of tasks, at least 1.")
            np = int(value)
        index += count
    refuse_operators(line[index:], name)
    return MpirunLine("slurm", np=np, steps=(" ".join(word.raw for word in line[index:]),) if line[index:] else ())


def _flag(line: Sequence[ShellWord], index: int) -> tuple[str, str, int]:
    """Return a flag, its value, and the number of words."""
    text = line[index].value
    following = line[index + 1].value if index + 1 < len(line) else ""
    if text.startswith("--"):
        flag, equals, value = text.partition("=")
        return (flag, value, 1) if equals or flag[2:] in _ALONE else (flag, following, 2)
    if text[1:2] in _SHORT_ALONE or len(text) > _ATTACHED:
        return text[:2], text[2:], 1
    return text, following, 2


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


_EXPORT = re.compile(r"export\s+[A-Za-z_]", re.ASCII)
_SHOWN = 60


class _Parsed(NamedTuple):
    started: list[MpirunLine]
    variables: dict[str, str | None]
    warnings: list[str]


def read_body(text: str, name: str, slots: int) -> MpirunLine:
    """Parse the lines and merge them; ``slots`` is the number of ranks for which the head reserves resources.

    Raises
    ------
    JobError
        A launcher's flag is unknown, or a quote is not closed.
    """
    parsed, workdir = _Parsed([], {}, []), ""
    for number, line in shell_lines.logical(text, name):
        if folder := moved(line):
            workdir = folder
        elif not is_ours(line):
            _parse(line, f"{name}:{number}", parsed)
    merged = together(parsed.started, slots)
    of_launchers = {variable.name: variable.value for variable in merged.environment}
    return msgspec.structs.replace(
        merged,
        environment=tuple(Variable(key, value) for key, value in (parsed.variables | of_launchers).items()),
        workdir=workdir or merged.workdir,
        warnings=(*merged.warnings, *parsed.warnings),
    )


def _parse(line: str, where: str, parsed: _Parsed) -> None:
    if _EXPORT.match(line) and not expands(line):
        for word in shlex.split(line)[1:]:
            name, equals, value = word.partition("=")
            parsed.variables[name] = value if equals else None
    elif starts_ranks(line.removeprefix("exec ")):
        parsed.started.append(of_line(line, where))
    else:
        shown = line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
        parsed.warnings.append(f"{where}: `{' '.join(shown.split())}` is ignored: it is run once, not by the ranks")


_BSUB = re.compile(r"^#BSUB\b", re.MULTILINE)
_BSUB_ALONE = {"hl", "x", "I", "Ip", "Is", "IS", "ISp", "ISs", "IX", "K", "r", "rn", "H", "N", "B", "XF"}
_KIBIBYTE = 1024
_TILE = re.compile(r"span\[[^\[\]]*?\bptile=([1-9][0-9]{0,5})")
_ONE_HOST = re.compile(r"span\[[^\[\]]*?\bhosts=1\b")
_MEMORY = re.compile(r"rusage\[[^\[\]]*?\bmem=([0-9.]+[A-Za-z]*)(/task|/host|/job)?")
_CORES = re.compile(r"affinity\[(?:core|thread)(?:\(([1-9][0-9]{0,5}))?")
_BSUB_GPUS = re.compile(r"\bnum=([1-9][0-9]{0,4})(/task|/host)?")


def matches_bsub(text: str, _name: str) -> bool:
    """Return whether a script has #BSUB lines."""
    return _BSUB.search(text) is not None


def read_bsub(text: str, name: str) -> JobSpec:
    """Return the job of a script.

    Raises
    ------
    JobError
        The script is invalid; the message has the line and flag.
    """
    head = _bsub_head(text, name)
    ranks = Directive("n", head.text("n").split(",")[0] or "1", head["n"].where if "n" in head else name).count()
    slots = _slots(head, ranks)
    hosts = -(-ranks // slots)
    lines = read_body(text, name, ranks)
    resources = _bsub_resources(head, slots, hosts)
    np = lines.np or ranks
    if np > hosts * slots:
        raise JobError(f"{name}: {np} ranks do not fit: -n gives {plural(hosts * slots, 'slot')}.")
    return JobSpec(
        "lsf",
        tuple(Replica("worker", index, slots=slots, resources=resources) for index in range(hosts)),
        steps=lines.steps,
        np=0 if np == hosts * slots else np,
        environment=lines.environment,
        name=head.text("J"),
        workdir=head.text("cwd") or lines.workdir,
        interfaces=lines.interfaces,
        warnings=lines.warnings,
    )


def _bsub_head(text: str, name: str) -> Head:
    head = Head()
    for where, options in of(text, "#BSUB", name):
        index = 0
        while index < len(options):
            flag = options[index].removeprefix("-")
            if flag == options[index]:
                raise Directive(flag, "", where).error("is not a flag of bsub")
            value = "" if flag in _BSUB_ALONE or index + 1 == len(options) else options[index + 1]
            if flag == "R" and "R" in head:  # requirements of several flags are combined
                value = f"{head.text('R')} {value}"
            head[flag] = Directive(flag, value, where)
            index += 1 if flag in _BSUB_ALONE else 2
    return head


def _slots(head: Head, ranks: int) -> int:
    tile = _TILE.search(head.text("R"))
    if tile:
        return int(tile[1])
    return ranks if _ONE_HOST.search(head.text("R")) else 1


def _bsub_resources(head: Head, slots: int, hosts: int) -> Resources:
    """Return the resources of a host."""
    cores = _CORES.search(head.text("R"))
    cpu = int(cores[1] or 1) * slots if cores else None
    memory = _MEMORY.search(head.text("R"))
    parts = {"/task": 1 / slots, "/job": hosts}
    request = Directive("mem", memory[1], head["R"].where).bytes(MEBIBYTE) / parts.get(memory[2], 1) if memory else None
    limit = head["M"].bytes(_KIBIBYTE) * (1 if "hl" in head else slots) if head.text("M") else None
    gpus = _BSUB_GPUS.search(head.text("gpu"))
    count = int(gpus[1]) * (slots if gpus[2] == "/task" else 1) if gpus else None
    return Resources(Bounds(cpu, cpu), Bounds(request, limit), count)


_SBATCH = re.compile(r"^#SBATCH\b", re.MULTILINE)
_APART = {"hetjob", "packjob"}
_LONG = {"J": "job-name", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "D": "chdir", "G": "gpus"}
_SBATCH_ALONE = {
    *("contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit", "quiet"),
    *("oversubscribe", "parsable", "reboot", "requeue", "spread-job", "test-only", "use-min-nodes", "verbose", "wait"),
}
_SBATCH_SHORT_ALONE = frozenset("HkOQsvW")
_SBATCH_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z_][\w.-]*:)?([0-9]{1,5})", re.ASCII)
_TOGETHER = re.compile(r"^\s*srun\s[^#\n]*--(?:het|pack)-group", re.MULTILINE)
_NODES = re.compile(r"([0-9]{1,6})(?:-[0-9]{1,6})?", re.ASCII)


def matches_sbatch(text: str, _name: str) -> bool:
    """Return whether a script has #SBATCH lines."""
    return _SBATCH.search(text) is not None


def read_sbatch(text: str, name: str) -> JobSpec:
    """Return the job of a script.

    Raises
    ------
    JobError
        The script is invalid; the message has the line and flag.
    """
    heads = _sbatch_heads(text, name)
    alone = len(heads) > 1 and not _TOGETHER.search(text)
    replicas: list[Replica] = []
    for head in heads[:1] if alone else heads:
        replicas += _replicas(head, len(replicas))
    slots = sum(replica.slots for replica in replicas)
    lines = read_body(text, name, slots)
    tasks = heads[0]["ntasks"].count() if "ntasks" in heads[0] and len(heads) == 1 else 0
    np = lines.np or tasks
    warnings = [*lines.warnings, *(["srun without --het-group uses the first component alone"] if alone else [])]
    return JobSpec(
        "slurm",
        tuple(replicas),
        steps=lines.steps,
        np=0 if np == slots else np,
        environment=lines.environment,
        name=heads[0].text("job-name"),
        workdir=heads[0].text("chdir") or lines.workdir,
        interfaces=lines.interfaces,
        warnings=tuple(warnings),
    )


def _sbatch_heads(text: str, name: str) -> list[Head]:
    heads = [Head()]
    for where, options in of(text, "#SBATCH", name):
        if options[:1] and options[0] in _APART:
            heads.append(Head())
            continue
        index = 0
        while index < len(options):
            directive, count = _directive(options, index, where)
            heads[-1][directive.flag] = directive
            index += count
    return heads


def _directive(words: list[str], index: int, where: str) -> tuple[Directive, int]:
    text, following = words[index], words[index + 1] if index + 1 < len(words) else ""
    if text.startswith("--"):
        flag, equals, value = text[2:].partition("=")
        return (
            (Directive(flag, value, where), 1)
            if equals or flag in _SBATCH_ALONE
            else (Directive(flag, following, where), 2)
        )
    flag = _LONG.get(text[1:2], text[1:2])
    if text[:1] != "-" or not flag:
        raise Directive(text, "", where).error("is not a flag of sbatch")
    alone = text[1:2] in _SBATCH_SHORT_ALONE or len(text) > 2  # noqa: PLR2004 - a dash, a letter
    return (Directive(flag, text[2:], where), 1) if alone else (Directive(flag, following, where), 2)


def _replicas(head: Head, first: int) -> list[Replica]:
    tasks = head["ntasks"].count() if "ntasks" in head else 0
    nodes = _nodes(head) or (-(-tasks // _per_node(head)) if tasks and _per_node(head) else 1)
    slots = _per_node(head) or -(-tasks // nodes) or 1
    resources = _sbatch_resources(head, slots, nodes)
    return [Replica("worker", first + index, slots=slots, resources=resources) for index in range(nodes)]


def _nodes(head: Head) -> int:
    if "nodes" not in head:
        return 0
    match = _NODES.fullmatch(head.text("nodes"))
    if match is None or match[1].strip("0") == "":
        raise head["nodes"].error("must be a number of nodes, at least 1, or two of them, as in 2-4")
    return int(match[1])


def _per_node(head: Head) -> int:
    return head["ntasks-per-node"].count() if "ntasks-per-node" in head else 0


def _sbatch_resources(head: Head, slots: int, nodes: int) -> Resources:
    cpus = head["cpus-per-task"].count() * slots if "cpus-per-task" in head else None
    memory = head["mem"].bytes(MEBIBYTE) if "mem" in head else 0
    if "mem-per-cpu" in head:
        memory = head["mem-per-cpu"].bytes(MEBIBYTE) * (cpus or slots)
    return Resources(_both(cpus), _both(memory or None), _gpus(head, slots, nodes))


def _gpus(head: Head, slots: int, nodes: int) -> int | None:
    """Return the GPUs of a node."""
    times = {"gpus-per-node": 1, "gpus-per-task": slots}
    for flag, factor in times.items():
        if flag in head:
            return _gpu_count(head[flag], head.text(flag)) * factor
    if "gpus" in head:
        return -(-_gpu_count(head["gpus"], head.text("gpus")) // nodes)
    generic = [part for part in head.text("gres").split(",") if part.split(":")[0] == "gpu"]
    return sum(1 if part == "gpu" else _gpu_count(head["gres"], part) for part in generic) if generic else None


def _gpu_count(directive: Directive, text: str) -> int:
    match = _SBATCH_GPUS.fullmatch(text)
    if match is None:
        raise directive.error("must be a number of GPUs, as in 4 or a100:4")
    return int(match[1])


def _both(amount: float | None) -> Bounds:
    """Return an amount that Slurm both reserves and enforces."""
    return Bounds(amount, amount)
