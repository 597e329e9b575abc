"""Flags of the magics: one row for each, with what its value may be and one line of help. Pure.

A magic's row in ``magics/commands/index.py`` names the groups that it accepts; parsing, usage, help and completion are
generated from them.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
HVDRUN = (*WHERE, *RANKS, *CELL, *SMOKE, *TIMEOUT, *FORCE, *KEEP)
