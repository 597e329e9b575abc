"""The options of the magics: text in, a frozen dataclass or a UsageError that says how to write it out. Pure."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.formatting.rank_labels import spans
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.detached import NAME
from hvd_kernel.settings import gpus

if TYPE_CHECKING:
    from hvd_kernel.jobs import JobSpec


@dataclass(frozen=True)
class Options:
    """What a magic's line says; None and empty mean: not said."""

    n: int | None = None
    ranks: str = "all"
    local: bool = False
    push: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    out: str = ""
    timeout: float | None = None
    bg: str | None = None  # the job's name, "" when it gets one of its own
    keep: str | None = None  # the kept cluster's name, "" when it gets one of its own
    kept: str = ""  # the same, of one that is to end
    raise_error: bool = True
    wait: bool = False
    force: bool = False
    restore: tuple[str, ...] = ()
    respawn: str = ""
    strict: bool = False
    dry_run: bool = False
    hosts: str = ""
    hostfile: str = ""
    gpus: str = ""
    job: str = ""
    line: tuple[str, ...] = ()  # another launcher's, behind --
    mpi_args: tuple[str, ...] | None = None
    cell: int | None = None
    tail: int = 100
    stream: str = ""  # "" is both
    path: bool = False
    per_rank: bool = False
    mark_cycles: bool = False
    words: tuple[str, ...] = ()  # what is no option: %hvd's verb, names of variables


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks: write 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: write seconds, more than 0")
    return value


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
    return tuple(_name(part.strip()) for part in text.split(","))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines: write 0 or more")
    return int(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


def _gpus(text: str) -> str:
    try:
        return gpus.checked(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--gpus ")) from None


MPI_ARGS = "--mpi-args"
_LINKS = ("pml", "btl")  # parameters of MPI's own links, which the launcher sets

_WHERE: dict[tuple[str, ...], dict[str, Any]] = {
    ("-np", "-n", "--num-proc"): {"dest": "n", "type": _positive, "metavar": "N"},
    ("-H", "--hosts"): {"dest": "hosts", "metavar": "HOST:SLOTS,..."},
    ("--hostfile",): {"dest": "hostfile", "metavar": "FILE"},
    ("--gpus",): {"dest": "gpus", "type": _gpus, "metavar": "auto|all|0,1|none"},
    (MPI_ARGS,): {"dest": "mpi_args", "type": _words, "metavar": "'...'"},
    ("--job",): {"dest": "job", "metavar": "FILE"},
}
_RANKS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--ranks", "--targets", "-t"): {"dest": "ranks", "metavar": "0,2-3|::2|all"},
}
_ONE_RANK = {("--rank", *flags): how for flags, how in _RANKS.items()}
_CELL: dict[tuple[str, ...], dict[str, Any]] = {
    ("--local",): {"dest": "local", "action": "store_true"},
    ("--push",): {"dest": "push", "type": _names, "metavar": "a,b"},
    ("--pull",): {"dest": "pull", "type": _names, "metavar": "c"},
    ("-o", "--out"): {"dest": "out", "type": _name, "metavar": "NAME"},
    ("--bg",): {"dest": "bg", "type": _job, "nargs": "?", "const": "", "metavar": "NAME"},
    ("--no-raise-error",): {"dest": "raise_error", "action": "store_false"},  # spelt as in IPython's %%script
}
_TIMEOUT: dict[tuple[str, ...], dict[str, Any]] = {
    ("--timeout",): {"dest": "timeout", "type": _seconds, "metavar": "S"},
}
_FORCE: dict[tuple[str, ...], dict[str, Any]] = {
    ("--force",): {"dest": "force", "action": "store_true"},
}
_STRICT: dict[tuple[str, ...], dict[str, Any]] = {
    ("--strict",): {"dest": "strict", "action": "store_true"},
}
_LOGS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--cell",): {"dest": "cell", "type": _count, "metavar": "N"},
    ("--tail",): {"dest": "tail", "type": _count, "metavar": "N"},
    ("--stream",): {"dest": "stream", "choices": ("stdout", "stderr")},
    ("--path",): {"dest": "path", "action": "store_true"},
}
_KEEP: dict[tuple[str, ...], dict[str, Any]] = {
    ("--keep",): {"dest": "keep", "type": _cluster_to_keep, "nargs": "?", "const": "", "metavar": "NAME"},
}
_KEPT: dict[tuple[str, ...], dict[str, Any]] = {
    ("--kept",): {"dest": "kept", "type": _cluster, "metavar": "NAME|all"},
}
_DRY_RUN: dict[tuple[str, ...], dict[str, Any]] = {
    ("--dry-run",): {"dest": "dry_run", "action": "store_true"},
}
_RESPAWN: dict[tuple[str, ...], dict[str, Any]] = {
    ("--restore",): {"dest": "restore", "type": _names, "metavar": "a,b"},
    ("--respawn",): {"dest": "respawn", "choices": ("auto", "off")},
}
_TRACK: dict[tuple[str, ...], dict[str, Any]] = {
    ("--per-rank",): {"dest": "per_rank", "action": "store_true"},
}
_TIMELINE: dict[tuple[str, ...], dict[str, Any]] = {
    ("--mark-cycles",): {"dest": "mark_cycles", "action": "store_true"},
}
TABLE: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {
    "%%hvdrun": _WHERE | _RANKS | _CELL | _TIMEOUT | _FORCE | _KEEP,
    "%hvd": _WHERE | _RANKS | _RESPAWN | _FORCE | _STRICT | _DRY_RUN | _KEEP | _KEPT | _TRACK | _TIMELINE,
    "%hvdpdb": _ONE_RANK,
    "%hvddebug": _ONE_RANK,
    "%hvdpush": _RANKS | _FORCE,
    "%hvdpull": _RANKS | _FORCE,
    "%hvdjobs": {("--wait",): {"dest": "wait", "action": "store_true"}} | _TIMEOUT,
    "%hvdcancel": {},
    "%hvdlogs": _RANKS | _LOGS,
}
"""magic -> its options, as argparse takes them. Completion and usage are made from it too."""


def nearest(word: str, known: Sequence[str]) -> str:
    """Return ``: did you mean ...?`` with the known word that is most like this one; empty where none is."""
    found = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {found[0]}?" if found else ""


class _Parser(argparse.ArgumentParser):
    def format_usage(self) -> str:
        """Escape the magic's own %: argparse takes this for a pattern when options and words are mixed."""
        return super().format_usage().replace("%", "%%")

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split()
        known = [flag for action in self._actions for flag in action.option_strings]
        if unknown and (near := nearest(unknown[0].partition("=")[0], known)):
            raise UsageError(f"{self.prog}: {unknown[0]!r} is not an option{near}")
        raise UsageError(f"{self.prog}: {message}. {self.format_usage().replace('%%', '%').strip()}")


@lru_cache(maxsize=64)
def parse(magic: str, line: str) -> Options:
    """Parse the line of a magic of the TABLE.

    Raises
    ------
    UsageError
        Naming what is wrong and how the magic is written.
    """
    parser = _Parser(prog=magic, add_help=False, allow_abbrev=False)
    for flags, how in TABLE[magic].items():
        parser.add_argument(*flags, **{"default": argparse.SUPPRESS, **how})
    parser.add_argument("words", nargs="*", metavar="", default=())
    tokens = _tokens(magic, line)
    at = tokens.index("--") if "--" in tokens and magic == "%%hvdrun" else len(tokens)
    given = vars(parser.parse_intermixed_args(tokens[:at])) | {"line": tuple(tokens[at + 1 :])}
    if magic == "%%hvdrun" and given["words"]:
        raise UsageError(f"%%hvdrun: {given['words'][0]!r} is not an option; code begins on the next line")
    return Options(**{**given, "words": tuple(given["words"])})


def _tokens(magic: str, line: str) -> list[str]:
    try:
        tokens = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{magic}: {error} in {line.strip()!r}: close the quotes") from None
    for token in tokens:
        if glued := re.fullmatch(r"-np(\d+)", token):
            raise UsageError(f"{magic}: {token!r} is not an option: write -np {glued[1]}, with a space")
    for i, token in enumerate(tokens[:-1]):
        if token == MPI_ARGS:  # its value begins with dashes; argparse takes that only behind "="
            tokens[i : i + 2] = [f"{MPI_ARGS}={tokens[i + 1]}"]
            break
    return tokens


def flags(magic: str) -> list[str]:
    """Every spelling of every option of a magic, for completion."""
    return [flag for group in TABLE[magic] for flag in group]


def resolve(text: str, n: int) -> tuple[int, ...]:
    """Return the ranks that ``0,2-3``, ``::2``, ``all`` or ``root`` mean in a cluster of n.

    Raises
    ------
    UsageError
        If a part is not understood, names a rank that is not there, or nothing is left.
    """
    chosen: set[int] = set()
    for part in text.replace("[", "").replace("]", "").split(","):
        chosen |= _part(part.strip(), n)
    if outside := sorted(rank for rank in chosen if rank >= n):
        raise UsageError(f"--ranks {text}: there is no rank {spans(outside)}; the cluster has ranks {spans(range(n))}")
    if not chosen:
        raise UsageError(f"--ranks {text}: names no rank; the cluster has ranks {spans(range(n))}")
    return tuple(sorted(chosen))


def says_one_rank(text: str) -> bool:
    """Whether ``--ranks`` says one rank by its number or as ``root``: a slice that happens to be one is none."""
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


def slots(hosts: str) -> int:
    """Return how many ranks ``h1:4,h2`` offers.

    Raises
    ------
    UsageError
        If the number behind a host is none.
    """
    from hvd_kernel.jobs.readers import hostfile  # noqa: PLC0415 - a kernel without jobs starts without their readers
    from hvd_kernel.jobs.spec import JobError  # noqa: PLC0415 - as above

    try:
        return sum(count for _, count in hostfile.host_list(hosts, f"-H {hosts}"))
    except JobError as error:
        raise UsageError(str(error)) from None


def slots_of_file(path: str) -> int:
    """Return how many ranks a hostfile of lines ``host slots=4`` (or ``host:4``, or ``host``) offers.

    Raises
    ------
    UsageError
        The file cannot be read or names no host, or the number behind a host is none; the line is named.
    """
    from hvd_kernel.jobs.readers import hostfile  # noqa: PLC0415 - as above
    from hvd_kernel.jobs.spec import JobError  # noqa: PLC0415 - as above

    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {path}: it cannot be read: {error}") from None
    try:
        return sum(replica.slots for replica in hostfile.read(text, f"--hostfile {path}").replicas)
    except JobError as error:
        raise UsageError(str(error)) from None


def wanted(options: Options, running: ClusterSpec | None, default_n: int) -> ClusterSpec:
    """Return the cluster that a line asks for: what it does not say stays as it is in the running one.

    Raises
    ------
    UsageError
        ``-H`` and ``--hostfile`` are both there, or one of them cannot be read.
    """
    base = running or ClusterSpec(n=default_n)
    if options.hosts and options.hostfile:
        raise UsageError("-H and --hostfile both say where the ranks run: keep one of them")
    if options.job or options.line:
        return _of_job(options, base)
    says_where = bool(options.hosts or options.hostfile)
    offered = slots(options.hosts) if options.hosts else slots_of_file(options.hostfile) if options.hostfile else base.n
    n = options.n or offered
    return ClusterSpec(
        n=n,
        hosts=options.hosts if says_where else base.hosts,
        hostfile=options.hostfile if says_where else base.hostfile,
        mpi_args=base.mpi_args if options.mpi_args is None else options.mpi_args,
        start_timeout_s=base.start_timeout_s,
        gpus=options.gpus or base.gpus,
        limits=base.limits if n == base.n else (),
    )


def _of_job(options: Options, base: ClusterSpec) -> ClusterSpec:
    """Return the cluster of a platform's file or line: its ranks, hosts, limits and variables; ``--gpus`` wins.

    Raises
    ------
    UsageError
        Something else says how many ranks, or where.
    ConfigError
        The file cannot be used, or wants devices that are not here.
    """
    from hvd_kernel.jobs import here  # noqa: PLC0415 - as above
    from hvd_kernel.jobs.place import place  # noqa: PLC0415 - as above

    if options.n or options.hosts or options.hostfile or (options.job and options.line):
        what = "the line behind --" if options.line else "--job"
        raise UsageError(f"{what} says how many ranks there are, and where: leave -np, -H and --hostfile away")
    spec = here.of_words([options.job] if options.job else [], options.line, "")
    placed = place(spec, here.machine().blind() if options.gpus else here.machine())
    return ClusterSpec(
        n=spec.size,
        hosts=placed.spelled if any(replica.host for replica in spec.replicas) else "",
        mpi_args=(_mpi_args(spec) or base.mpi_args) if options.mpi_args is None else options.mpi_args,
        start_timeout_s=base.start_timeout_s,
        gpus=options.gpus or placed.devices,
        limits=placed.limits if any(placed.limits) else (),
    )


def _mpi_args(spec: JobSpec) -> tuple[str, ...]:
    """Return what MPI is given of a job: its variables, and parameters that are not those of the links of cells."""
    found: list[str] = []
    for each in spec.environment:
        if each.value is not None or each.name in os.environ:
            found += ["-x", each.name if each.value is None else f"{each.name}={each.value}"]
    for name, value in spec.mca:
        found += [] if name in _LINKS else ["--mca", name, value]
    return tuple(found)


def left_aside(options: Options) -> list[str]:
    """Return sentences on what has no effect in a line behind ``--``: its command, and flags.

    Raises
    ------
    JobError
        It cannot be read.
    """
    if not options.line:
        return []
    from hvd_kernel.jobs import here  # noqa: PLC0415 - as above
    from hvd_kernel.jobs.readers.mpirun import still_true  # noqa: PLC0415 - as above
    from hvd_kernel.jobs.spec import NO_COMMAND  # noqa: PLC0415 - as above

    spec = here.of_words([], options.line, "")
    given = {name for name, _ in spec.mca if name not in _LINKS}  # to MPI, which is what starts a cell's ranks
    told = [each for each in spec.warnings if spec.steps or not each.endswith(NO_COMMAND)]
    return [*(f"{step} is left aside: the cell's code is what runs" for step in spec.steps), *still_true(told, given)]


def names(options: Options, magic: str) -> Sequence[str]:
    """Return the variables that ``%hvdpush a b`` or ``%hvdpush a,b`` names.

    Raises
    ------
    UsageError
        If there are none or one is not a name.
    """
    found = [name for word in options.words for name in word.split(",") if name]
    if not found:
        raise UsageError(f"{magic}: name the variables, as in {magic} a b")
    if wrong := [name for name in found if not name.isidentifier()]:
        raise UsageError(f"{magic}: {wrong[0]!r} is not a variable's name")
    return found
