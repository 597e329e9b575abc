"""The options of a magic's line: a frozen dataclass, or a UsageError with the correct usage. Pure."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn

from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.rank_labels import spans
from hvd_kernel.magics.flags import MPI_ARGS, MagicFlag
from hvd_kernel.settings.lists import entries


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
