"""Options of a magic's line: the flags, one row for each, and their values as a frozen dataclass. Pure.

A magic's row in ``magics/commands/index.py`` names the groups of flags that it accepts; parsing, usage, help and
completion are generated from them. A wrong line raises UsageError with the correct usage.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import spans
from hvd_kernel.processes.cluster_spec import ENGINES
from hvd_kernel.processes.detached import NAME
from hvd_kernel.settings import arguments
from hvd_kernel.settings.lists import entries


@dataclass(frozen=True)
class MagicFlag:
    """One row: its spellings, the field of ``Options`` for its value, and its help."""

    spellings: tuple[str, ...]
    dest: str
    help: str
    metavar: str = ""
    type: Callable[[str], Any] | None = None
    choices: tuple[str, ...] = ()
    action: str = ""  # of a flag without a value
    bare: bool = False  # its value is optional; without it: ""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of argparse's ``add_argument``."""
        fields = {"type": self.type, "metavar": self.metavar, "choices": self.choices, "action": self.action}
        present = {name: value for name, value in fields.items() if value}
        bare = {"nargs": "?", "const": ""} if self.bare else {}
        return {"dest": self.dest, "default": argparse.SUPPRESS, **present, **bare}

    def usage(self) -> str:
        """Return its usage, in its first spelling."""
        value = self.metavar or "|".join(self.choices)
        return f"{self.spellings[0]} {f'[{value}]' if self.bare else value}".rstrip()

    def full_help(self) -> str:
        """Return its help, with its other spellings."""
        return f"{self.help} (also {', '.join(self.spellings[1:])})" if len(self.spellings) > 1 else self.help


def _name(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not a variable's name")
    return text


def _job(text: str) -> str:
    if text == "all" or not re.fullmatch(r"(\w[\w.-]*)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a job's name: write letters, digits, _ . and -")
    return text


def _cluster(text: str) -> str:
    if text and not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a cluster's name: write letters, digits, _ . and -")
    return text


def _cluster_to_keep(text: str) -> str:
    if text == "all":
        raise argparse.ArgumentTypeError(
            "'all' cannot be a cluster's name, since `%hvd clean --kept all` means all of them: choose another"
        )
    return _cluster(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(_name(entry) for entry in entries(text) or [text])


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines: write 0 or more")
    return int(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


MPI_ARGS = "--mpi-args"

_YES, _NO = "store_true", "store_false"
_RANKS = ("--ranks", "--targets", "-t")

WHERE = (
    MagicFlag(
        ("-np", "-n", "--num-proc"),
        "n",
        "number of ranks; ranks are added or removed, survivors keep their variables",
        "N",
        arguments.positive,
    ),
    MagicFlag(("-H", "--hosts"), "hosts", "where the ranks run", "HOST:SLOTS,..."),
    MagicFlag(("--hostfile",), "hostfile", "where the ranks run, from a file of lines `host slots=N`", "FILE"),
    MagicFlag(
        ("--gpus",), "gpus", "GPUs of each host, assigned to its ranks in turn", "auto|all|0,1|none", arguments.devices
    ),
    MagicFlag(("--no-mps",), "mps", "no private daemon of NVIDIA's MPS for ranks that share a device", action=_NO),
    MagicFlag((MPI_ARGS,), "mpi_args", "more arguments for mpiexec", "'...'", _words),
    MagicFlag(
        ("--on",),
        "on",
        "what starts the ranks: mpiexec (here), a Ray cluster, a Spark application, or Kubernetes",
        choices=("here", *ENGINES),
    ),
    MagicFlag(("--job",), "job", "ranks, hosts, limits and variables from a platform's file", "FILE"),
)
RANKS = (MagicFlag(_RANKS, "ranks", "only these ranks", "0,2-3|::2|all|root"),)
ONE_RANK = (MagicFlag(("--rank", *_RANKS), "ranks", "only these ranks", "0,2-3|::2|all|root"),)
CELL = (
    MagicFlag(("--local",), "local", "also run the cell in the notebook, afterwards", action=_YES),
    MagicFlag(("--push",), "push", "copy variables from the notebook to the ranks first", "a,b", _names),
    MagicFlag(
        ("--pull",),
        "pull",
        "copy variables from the ranks afterwards: c[0] is rank 0's; with --ranks 2 c is rank 2's",
        "c",
        _names,
    ),
    MagicFlag(
        ("--scatter",),
        "scatter",
        "split variables of the notebook among the ranks: rank 0 gets the first rows of x as its x, and so on",
        "x",
        _names,
    ),
    MagicFlag(
        ("--gather",),
        "gather",
        "concatenate variables of the ranks afterwards: y is rank 0's y followed by the rows of rank 1's, and so on",
        "y",
        _names,
    ),
    MagicFlag(("-o", "--out"), "out", "keep the last expressions: NAME[0], NAME.stdout[0]", "NAME", _name),
    MagicFlag(
        ("--bg",),
        "bg",
        "run in the background, after the jobs in the queue: see %hvdjobs, %hvdcancel NAME",
        "NAME",
        _job,
        bare=True,
    ),
    MagicFlag(  # spelt as in IPython's %%script
        ("--no-raise-error",),
        "raise_error",
        "show errors of the ranks, but let the cell succeed; the names of -o, --pull and --gather then hold the error",
        action=_NO,
    ),
)
HELP = (MagicFlag(("--help",), "help", "show this help and exit", action=_YES),)
SMOKE = (
    MagicFlag(("--smoke",), "smoke", "run the cell on rank 0 alone first, as the only rank; then on all", action=_YES),
)
INDEPENDENT = (
    MagicFlag(
        ("--independent",),
        "independent",
        "each rank trains a model of its own: without torchrun's variables and the default backend hvd of torch",
        action=_YES,
    ),
)
TIMEOUT = (MagicFlag(("--timeout",), "timeout", "interrupt the cell after S seconds", "S", arguments.seconds),)
FORCE = (
    MagicFlag(
        ("--force",),
        "force",
        "move variables of any size, lose those that are not kept, start more ranks than fit, stop jobs in the way",
        action=_YES,
    ),
)
STRICT = (MagicFlag(("--strict",), "strict", "check: a difference fails the cell", action=_YES),)
LOGS = (
    MagicFlag(("--cell",), "cell", "only one cell, by its number in the notebook: [7]", "N", _count),
    MagicFlag(("--tail",), "tail", "the last N lines (100)", "N", _count),
    MagicFlag(("--stream",), "stream", "only one stream", choices=("stdout", "stderr")),
    MagicFlag(("--path",), "path", "print the paths of the files", action=_YES),
)
KEEP = (
    MagicFlag(
        ("--keep",),
        "keep",
        "keep the ranks when this kernel ends: %hvd attach after its restart",
        "NAME",
        _cluster_to_keep,
        bare=True,
    ),
)
KEPT = (
    MagicFlag(("--kept",), "kept", "clean: end detached ranks", "NAME|all", _cluster),
    MagicFlag(("--pool",), "pool", "clean: end warm ranks (HVD_POOL)", action=_YES),
)
DRY_RUN = (MagicFlag(("--dry-run",), "dry_run", "clean: only list", action=_YES),)
RESPAWN = (
    MagicFlag(
        ("--restore",), "restore", "respawn, resize: variables that new ranks get from the others", "a,b", _names
    ),
    MagicFlag(("--drop",), "drop", "resize: ranks that leave, instead of the newest", "0,2-3|::2|root"),
    MagicFlag(
        ("--respawn",), "respawn", "start: whether cells replace dead ranks automatically", choices=("auto", "off")
    ),
)
TRACK = (MagicFlag(("--per-rank",), "per_rank", "track: every rank writes, not only rank 0", action=_YES),)
TIMELINE = (MagicFlag(("--mark-cycles",), "mark_cycles", "timeline: mark every round of the negotiation", action=_YES),)
WAIT = (
    MagicFlag(("--wait",), "wait", "wait for the jobs named, or for all; fail as their cells would fail", action=_YES),
    MagicFlag(("--timeout",), "timeout", "wait at most S seconds; the job continues", "S", arguments.seconds),
)
HVDRUN = (*WHERE, *RANKS, *CELL, *SMOKE, *INDEPENDENT, *TIMEOUT, *FORCE, *KEEP)


@dataclass(frozen=True)
class Options:
    """The options of a magic's line; None and empty mean: not given."""

    n: int | None = None
    ranks: str = "all"
    local: bool = False
    push: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    scatter: tuple[str, ...] = ()
    gather: tuple[str, ...] = ()
    out: str = ""
    smoke: bool = False
    independent: bool = False
    timeout: float | None = None
    bg: str | None = None  # the job's name, "" for a generated one
    keep: str | None = None  # the detached cluster's name, "" for a generated one
    kept: str = ""  # name of the detached cluster to end, or all
    pool: bool = False  # end warm ranks
    raise_error: bool = True
    wait: bool = False
    force: bool = False
    restore: tuple[str, ...] = ()
    drop: str = ""  # ranks that leave in a resize
    respawn: str = ""
    strict: bool = False
    dry_run: bool = False
    hosts: str = ""
    hostfile: str = ""
    gpus: str = ""
    mps: bool = True  # ranks that share a device may start a private MPS daemon
    on: str = ""  # the engine that starts the ranks; "here": mpiexec
    job: str = ""
    line: tuple[str, ...] = ()  # a line of another launcher, behind --
    mpi_args: tuple[str, ...] | None = None
    cell: int | None = None
    tail: int = 100
    stream: str = ""  # "" is both
    path: bool = False
    per_rank: bool = False
    mark_cycles: bool = False
    arguments: tuple[str, ...] = ()  # positional: the sub-command of %hvd, names of variables
    help: bool = False
    text: str = ""  # the line of %hvdpdb for the ranks


def nearest(word: str, candidates: Sequence[str]) -> str:
    """Return ``: did you mean ...?`` with the most similar candidate; "" if none is similar."""
    matches = difflib.get_close_matches(word, candidates, n=1)
    return f": did you mean {matches[0]}?" if matches else ""


_WRONG_VALUE = re.compile(r"argument (?P<flag>-[\w-]+)\S*: (?P<reason>.*)", re.DOTALL)
_COMMENT = re.compile(r"""(?P<comment>(?<!\S)\#.*)|"(?:\\.|[^"\\])*"|'[^']*'|\\.\#?|.""", re.DOTALL)
"""A comment, or other text: a quoted part or one character."""


class _Parser(argparse.ArgumentParser):
    def format_usage(self) -> str:
        """Escape the % of the magic's name: argparse formats the usage with % when options and arguments are mixed."""
        return super().format_usage().replace("%", "%%")

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split()
        flags = [flag for action in self._actions for flag in action.option_strings]
        if unknown and (near := nearest(unknown[0].partition("=")[0], flags)):
            raise UsageError(f"{self.prog}: {unknown[0]!r} is not an option{near}")
        if wrong := _WRONG_VALUE.fullmatch(message):  # the sentence names the flag: the whole usage would hide it
            raise UsageError(f"{self.prog}: {wrong['flag']}: {wrong['reason']}")
        raise UsageError(f"{self.prog}: {message}. {self.format_usage().replace('%%', '%').strip()}")


@lru_cache(maxsize=64)
def parse(magic: str, flags: tuple[MagicFlag, ...], line: str) -> Options:
    """Parse the line of a magic that accepts these flags.

    Raises
    ------
    UsageError
        Naming the wrong part and the correct usage.
    """
    parser = _Parser(prog=magic, add_help=False, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(*flag.spellings, **flag.arguments())
    parser.add_argument("arguments", nargs="*", metavar="", default=())
    tokens = _tokens(magic, line)
    at = tokens.index("--") if "--" in tokens and _is_cell(magic) else len(tokens)
    values = vars(parser.parse_intermixed_args(tokens[:at])) | {"line": tuple(tokens[at + 1 :])}
    if _is_cell(magic) and values["arguments"]:
        raise UsageError(f"{magic}: {values['arguments'][0]!r} is not an option; code begins on the next line")
    return Options(**{**values, "arguments": tuple(values["arguments"])})


def filled(line: str, variables: Mapping[str, Any]) -> str:
    """Substitute the notebook's variables in braces: ``-np {n}`` becomes ``-np 2`` if ``n`` is 2.

    Braces around anything else are left unchanged.

    Raises
    ------
    UsageError
        A variable is neither a number nor a string.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in variables:
            return match[0]
        value = variables[match[1]]
        if not isinstance(value, str | int | float):
            raise UsageError(f"{match[0]}: `{match[1]}` is neither a number nor a text, but {type(value).__name__}")
        return str(value)

    return re.sub(r"\{([A-Za-z_]\w*)\}", value, line)


def parse_leading(magic: str, flags: tuple[MagicFlag, ...], line: str) -> Options:
    """Parse the flags at the head of a line; the rest of it is text and left unchanged.

    Raises
    ------
    UsageError
        As ``parse``.
    """
    spellings = "|".join(re.escape(spelling) for flag in flags for spelling in flag.spellings)
    if line.strip() == "--help":
        return parse(magic, flags, line)
    match = re.fullmatch(rf"\s*((?:{spellings})(?:=|\s+)\S+)?\s?(.*)", line)
    head, text = (match[1] or "", match[2]) if match else ("", line)
    return replace(parse(magic, flags, head), text=text)


def _is_cell(magic: str) -> bool:
    return magic.startswith("%%")


def without_comment(line: str) -> str:
    """Return a magic's line up to a ``#`` at the beginning of a word outside quotes, as in a shell."""
    comment = next((part for part in _COMMENT.finditer(line) if part["comment"]), None)
    return line if comment is None else line[: comment.start()].rstrip()


def _tokens(magic: str, line: str) -> list[str]:
    line = without_comment(line)
    try:
        tokens = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{magic}: {error} in {line.strip()!r}: close the quotes") from None
    for token in tokens:
        if glued := re.fullmatch(r"-np(\d+)", token):
            raise UsageError(f"{magic}: {token!r} is not an option: write -np {glued[1]}, with a space")
    for i, token in enumerate(tokens[:-1]):
        if token == MPI_ARGS:  # its value begins with dashes, which argparse accepts only after "="
            tokens[i : i + 2] = [f"{MPI_ARGS}={tokens[i + 1]}"]
            break
    return tokens


def resolve(text: str, n: int) -> tuple[int, ...]:
    """Return the ranks that ``0,2-3``, ``::2``, ``all`` or ``root`` mean in a cluster of n.

    Raises
    ------
    UsageError
        A part cannot be parsed, names a rank outside the cluster, or no rank is selected.
    """
    chosen: set[int] = set()
    for part in entries(text.replace("[", "").replace("]", "")):
        chosen |= _part(part, n)
    if outside := sorted(rank for rank in chosen if rank >= n):
        raise UsageError(f"--ranks {text}: there is no rank {spans(outside)}; the cluster has ranks {spans(range(n))}")
    if not chosen:
        raise UsageError(f"--ranks {text}: names no rank; the cluster has ranks {spans(range(n))}")
    return tuple(sorted(chosen))


def says_one_rank(text: str) -> bool:
    """Return whether ``--ranks`` is one number or ``root``; a slice of one rank does not count."""
    return text.isdecimal() or text == "root"


def _part(part: str, n: int) -> set[int]:
    if part == "all":
        return set(range(n))
    if part == "root":
        return {0}
    if part.isdecimal():
        return {int(part)}
    if between := re.fullmatch(r"(\d+)-(\d+)", part):
        first, last = int(between[1]), int(between[2])
        return set(range(first, min(last, n) + 1)) | ({last} if last >= first else set())
    if re.fullmatch(r"-?\d*:-?\d*(:([1-9]\d*)?)?", part):
        ends = [int(end) if end else None for end in part.split(":")]
        return set(range(n)[slice(*ends)])
    raise UsageError(f"--ranks: {part!r} is not understood: write 0,2-3 or ::2 or all or root")


def names(options: Options, magic: str) -> Sequence[str]:
    """Return the names of variables in ``%hvdpush a b`` or ``%hvdpush a,b``.

    Raises
    ------
    UsageError
        There are none, or one is not an identifier.
    """
    chosen = [name for word in options.arguments for name in entries(word)]
    if not chosen:
        raise UsageError(f"{magic}: name the variables, as in {magic} a b")
    if wrong := [name for name in chosen if not name.isidentifier()]:
        raise UsageError(f"{magic}: {wrong[0]!r} is not a variable's name")
    return chosen
