"""Lines and shell scripts that start ranks: of containers, and the bodies of batch scripts. Pure.

Launcher lines (srun, jsrun, mpirun, horovodrun, hvdrun) become steps, ranks and variables; exported variables and the
working directory are read; the lines before the first launcher are set-up, which runs once. A launcher inside of a
loop, a condition or another command is refused with its line and column, as is a here-document.

Terms.
  line   a parsed launcher line (hvd_kernel.jobs.readers.mpirun.MpirunLine)
  values  those of variables that the batch system sets, such as SLURM_NTASKS, and of those that the script sets
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import msgspec

from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs import platform_fields, shell_lines
from hvd_kernel.jobs.documents import Document, Path
from hvd_kernel.jobs.readers import mpirun
from hvd_kernel.jobs.readers.jsrun import parse as parse_jsrun
from hvd_kernel.jobs.readers.mpirun import JSRUN, MpirunLine
from hvd_kernel.jobs.shell_lines import ShellWord, refuse_operators, words
from hvd_kernel.jobs.spec import JobError, PlatformField, Replica, Resources, Variable

_T = TypeVar("_T")
Values = Mapping[str, str]

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


_SRUN = re.compile(r"(?:\S*/)?srun(?:\s|$)")
_JSRUN = re.compile(rf"(?:\S*/)?{JSRUN}(?:\s|$)")
_SUBMITTED_FROM = re.compile(r'cd\s+"?\$\{?PBS_O_WORKDIR\}?"?')
"""PBS starts scripts in the home folder, other platforms in the one where the job is submitted."""
_LAUNCHER = "|".join(re.escape(name) for name in sorted({*mpirun.PROGRAMS, "srun", JSRUN}, key=len, reverse=True))
_WITHIN = re.compile(
    r"(?:^|[;&|({`]|(?<!\S)(?:time|then|do|else|elif|if|while|until|nohup|env|sudo|exec|command|eval|!|timeout\s+\S+))"
    rf"\s*(?:[A-Za-z_]\w*=\S*\s+)*(?P<launcher>(?:[\w./${{}}-]*/)?(?:{_LAUNCHER}))(?=[\s;&|)]|$)",
    re.ASCII,
)
_MASKED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
_HERE = re.compile(r"(?<!<)<<-?\s*\\?[\w_]", re.ASCII)
_OPENS = re.compile(r"(?:^|[;&|]|(?<!\S)(?:then|do|else))\s*(for|while|until|select|if|case|\{)(?=\s|$)")
_CLOSES = re.compile(r"(?:^|[;&|])\s*(?:done|fi|esac|\})(?=[\s;&|)<>]|$)")
_FUNCTION = re.compile(r"(?:function\s+)?[\w-]+\s*\(\)\s*\{|function\s+[\w-]+\s*\{", re.ASCII)
_JOINED = re.compile(r"\s*(?:&&|;)\s*")
_CONDITION = re.compile(r"\|\||(?:^|[;&])\s*(?:\[|test\s|!\s)|(?<!&)&(?!&)|\|")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(\S*|'[^']*'|\"[^\"]*\")", re.ASCII)
_NAME = r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))"
_VARIABLE = re.compile(_NAME, re.ASCII)
_PRODUCT = re.compile(r"\$\(\(\s*(?:\$?\{?\w+\}?)(?:\s*\*\s*\$?\{?\w+\}?)*\s*\)\)", re.ASCII)
_RANKS_FLAG = re.compile(
    r"(?<!\S)(-{1,2}(?:np|num-proc|ntasks|n|c|nrs|N|ppn|npernode|perhost|a|r|g|p)(?:=|\s+|(?=\$)))(\S+)"
)
_HOSTS_FLAG = re.compile(r"(?<!\S)(-{1,2}(?:H|hosts?|hostfile|machinefile|f)(?:=|\s+))\"?(\S*\$\S*?)\"?(?=\s|$)")
HOSTS_KNOWN_THERE = "the hosts are those of the allocation"
"""Reason why a launcher's list of hosts is ignored if only the running script knows it."""
HERE_DOCUMENT = "a here-document is not read: write its text to a file of its own"
NOT_ON_ITS_OWN = "{launcher} is called within another command, a loop or a condition: write it on a line of its own"
"""Sentences about lines that cannot be read; the position comes before them."""


def starts_ranks(text: str) -> bool:
    """Return whether a line starts with a launcher."""
    is_scheduler = _SRUN.match(text) is not None or _JSRUN.match(text) is not None
    return is_scheduler or mpirun.matches(text, "") or mpirun.matches_horovod(text, "")


def is_ours(text: str) -> bool:
    """Return whether a line has no meaning for ranks: our writers' own, and PBS's change to the folder of the job."""
    return (
        text == shell_lines.BARRIER
        or _SUBMITTED_FROM.fullmatch(text) is not None
        or _SECRET.match(text) is not None
        or re.fullmatch(r"set\s+[-+].*", text) is not None
    )


def of_line(text: str, name: str, values: Values = MappingProxyType({})) -> MpirunLine:
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
    parse = _srun if _SRUN.match(text) else parse_jsrun if _JSRUN.match(text) else mpirun.parse
    replaced, ignored = _with_known(text, values)
    line = parse(replaced, name)
    steps = line.steps
    if replaced != text:
        steps = tuple(_last_words(text, words(step, name), name) for step in steps)
    steps = tuple(map(shell_lines.unwrapped, steps))
    return msgspec.structs.replace(line, steps=steps, warnings=(*line.warnings, *ignored))


def _last_words(text: str, of: Sequence[ShellWord], name: str) -> str:
    """Return the command at the end of a line as it is written, with its variables."""
    return " ".join(word.raw for word in words(text, name)[-len(of) :])


def _with_known(text: str, values: Values) -> tuple[str, list[str]]:
    """Replace variables in the numbers of a launcher's flags, and remove lists of hosts that only the shell knows."""
    ignored = []

    def value(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2], match[0])

    def product(match: re.Match[str]) -> str:
        factors = [values.get(name.strip("$ {}"), name.strip("$ {}")) for name in match[0][3:-2].split("*")]
        numbers = [int(factor) for factor in factors if factor.isascii() and factor.isdecimal() and len(factor) < 7]  # noqa: PLR2004
        result = 1
        for number in numbers:
            result *= number
        return str(result) if len(numbers) == len(factors) else match[0]

    def count(match: re.Match[str]) -> str:
        return match[1] + _VARIABLE.sub(value, match[2].strip('"'))

    def hosts(match: re.Match[str]) -> str:
        ignored.append(f"{match[0]} is ignored: {HOSTS_KNOWN_THERE}")
        return ""

    if "$" in text:
        text = _RANKS_FLAG.sub(count, _PRODUCT.sub(product, text))
        text = _HOSTS_FLAG.sub(hosts, text) if values else text
    return text, ignored


def of_words(command: Sequence[str], name: str, values: Values = MappingProxyType({})) -> MpirunLine:
    """Parse a container's command: a launcher's line, a shell script with such lines, or a step.

    Raises
    ------
    JobError
        See ``of_line`` and ``read_body``.
    """
    script = _script(command)
    if script is None:
        return of_line(shlex.join(command), name, values) if command else MpirunLine()
    if calls_launcher(script):
        shell = _shell_of(command)
        line = read_body(script, f"{name}: line {{}} of its script", values).line()
        return msgspec.structs.replace(line, platform_fields=(*shell, *line.platform_fields))
    if _is_bourne(command) or shell_lines.is_plain(script):
        return MpirunLine(steps=(script,))
    return MpirunLine(steps=(shlex.join(command),))


def _is_bourne(command: Sequence[str]) -> bool:
    return command[0].rpartition("/")[2] == "sh"


def _shell_of(command: Sequence[str]) -> list[PlatformField]:
    """Return the shell of a script with its options, unless it is ``sh``; a line that fails ends the script."""
    options = command[1] if "e" in command[1] else command[1].replace("c", "ec")
    if _is_bourne(command) and options == "-ec":
        return []
    return [PlatformField(platform_fields.SHELL, [command[0], options], command[0])]


def calls_launcher(text: str) -> bool:
    """Return whether a line of a script calls a launcher, also within another command."""
    return any(_WITHIN.search(_masked(line)) or _nested(line) for line in re.sub(r"\\\n", "  ", text).split("\n"))


def _masked(line: str) -> str:
    """Return a line of the same length whose quoted parts are blanked out."""
    return _MASKED.sub(_blanks, line)


def _blanks(match: re.Match[str]) -> str:
    return "_" * len(match[0])


def _nested(line: str) -> str:
    """Return the script of a line ``bash -c SCRIPT`` if it calls a launcher, else an empty string."""
    if not re.match(r"(?:exec\s+)?\S*sh\s+-\w*c\s", line):
        return ""
    script = _script(_words(line.removeprefix("exec "))) or ""
    return script if script and calls_launcher(script) else ""


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
        per_host=next((line.per_host for line in parsed if line.per_host), 0),
        resources=next((line.resources for line in parsed if line.resources != Resources()), Resources()),
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
    index = 1
    counts = dict.fromkeys(_COUNTED.values(), 0)
    while index < len(line) and line[index].value.startswith("-"):
        flag, value, number = _flag(line, index)
        if flag in _COUNTED:
            if not _COUNT.fullmatch(value):
                raise JobError(f"{name}: {flag} {value}: must be a whole number of tasks, at least 1.")
            counts[_COUNTED[flag]] = int(value)
        index += number
    refuse_operators(line[index:], name)
    np = counts["tasks"] or counts["nodes"] * counts["per_node"]
    steps = (" ".join(word.raw for word in line[index:]),) if line[index:] else ()
    return MpirunLine("slurm", np=np, per_host=counts["per_node"], steps=steps)


_COUNTED = {"-n": "tasks", "--ntasks": "tasks", "--ntasks-per-node": "per_node", "-N": "nodes", "--nodes": "nodes"}


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
RUN_ONCE = "it is run once, not by the ranks"
"""Reason of a line of a script that is not a rank's command."""


@dataclass
class ScriptBody:
    """Content of a script's lines; ``depth`` counts the loops and conditions that are open."""

    values: dict[str, str]
    started: list[MpirunLine] = field(default_factory=list)
    variables: dict[str, str | None] = field(default_factory=dict)
    setup: list[PlatformField] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    workdir: str = ""
    depth: int = 0

    def line(self, slots: int = 0) -> MpirunLine:
        """Return the launcher lines as one, for a job that has room for this number of ranks; 0: it is unknown."""
        merged = together(self.started, slots)
        of_launchers = {variable.name: variable.value for variable in merged.environment}
        return msgspec.structs.replace(
            merged,
            environment=tuple(Variable(key, value) for key, value in (self.variables | of_launchers).items()),
            workdir=self.workdir or merged.workdir,
            warnings=(*merged.warnings, *self.warnings),
            platform_fields=tuple(self.setup),
        )


def read_body(text: str, name: str, values: Values = MappingProxyType({})) -> ScriptBody:
    """Parse the lines.

    Parameters
    ----------
    text
        The script.
    name
        Name for messages; braces in it stand for the number of a line, which else follows a colon.
    values
        Values of variables.

    Raises
    ------
    JobError
        A launcher's flag is unknown, a quote is not closed, or a launcher is not on a line of its own.
    """
    body = ScriptBody(dict(values))
    _read_lines(text, name, body)
    return body


def _read_lines(text: str, name: str, body: ScriptBody) -> None:
    sources = text.splitlines()
    for number, line in shell_lines.logical(text, name.replace(": line {} of its script", "")):
        where = name.format(number) if "{}" in name else f"{name}:{number}"
        source = sources[number - 1] if number <= len(sources) else line
        indent = len(source) - len(source.lstrip())
        for offset, part in _parts(line) if not body.depth else [(0, line)]:
            if not is_ours(part):
                _read_line(part, where, indent + offset, body)


def _parts(line: str) -> list[tuple[int, str]]:
    """Return the commands of ``A && B; C`` with their offsets, if one calls a launcher and all run unconditionally."""
    masked = _masked(line)
    if not _WITHIN.search(masked) or _OPENS.search(masked) or not (_JOINED.search(masked)):
        return [(0, line)]
    if _CONDITION.search(masked):
        return [(0, line)]
    ends = [(match.start(), match.end()) for match in _JOINED.finditer(masked)]
    starts = [0, *(end for _, end in ends)]
    parts = [
        (start, line[start:end]) for start, end in zip(starts, [*(first for first, _ in ends), len(line)], strict=True)
    ]
    return [(start + len(part) - len(part.lstrip()), part.strip()) for start, part in parts if part.strip()]


def _at(where: str, column: int) -> str:
    """Return a position in a script: ``name:2:6``, or ``name: line 2 of its script, column 6``."""
    return f"{where}, column {column}" if where.endswith("script") else f"{where}:{column}"


def _read_line(line: str, where: str, indent: int, body: ScriptBody) -> None:
    masked = _masked(line)
    if here := _HERE.search(masked):
        raise JobError(f"{_at(where, indent + here.start() + 1)}: {HERE_DOCUMENT}.")
    opened = body.depth
    body.depth += len(_OPENS.findall(masked)) + bool(_FUNCTION.match(masked)) - len(_CLOSES.findall(masked))
    first = line.removeprefix("exec ")
    starts = starts_ranks(first) and not opened
    calls = [match for match in _WITHIN.finditer(masked) if not (starts and match.start() == 0)]
    if calls and not (starts and shell_lines.of_hvdrun(first)):
        position = _at(where, indent + calls[0].start("launcher") + 1)
        launcher = calls[0]["launcher"].rpartition("/")[2]
        raise JobError(f"{position}: {NOT_ON_ITS_OWN.format(launcher=launcher)}.")
    if starts:
        body.started.append(of_line(first, where, body.values))
    elif nested := _nested(line):
        _read_lines(nested, f"{where}: line {{}} of its script", body)
    elif not opened and (folder := moved(line)):
        body.workdir = folder
    elif not opened and _EXPORT.match(line) and not expands(line):
        for word in shlex.split(line)[1:]:
            name, equals, value = word.partition("=")
            body.variables[name] = value if equals else body.values.get(name)
            body.values |= {name: value} if equals else {}
    else:
        _read_other(line, where, body)


def _read_other(line: str, where: str, body: ScriptBody) -> None:
    """Handle a line that starts no ranks: set-up, if the ranks start after it."""
    if (assigned := _ASSIGNED.fullmatch(line)) and not expands(line):
        body.values[assigned[1]] = "".join(_words(assigned[2]))
    shown = line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
    source = f"{where}: `{' '.join(shown.split())}`"
    if body.started:
        body.warnings.append(f"{source} is ignored: {RUN_ONCE}")
    else:
        body.setup.append(PlatformField(platform_fields.SETUP, line, source, RUN_ONCE))
