"""The words behind %hvd. A new one is a row of this table and a function in a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvd_kernel.errors import UsageError
from hvd_kernel.magics import attach, life, respawn, variables
from hvd_kernel.magics.check import check
from hvd_kernel.magics.clean import clean
from hvd_kernel.magics.desk import Desk
from hvd_kernel.magics.doctor import examine, report
from hvd_kernel.magics.options import Options, nearest
from hvd_kernel.magics.stacks import stacks

MANY = 1000
"""Words that may follow where they are names of variables."""


@dataclass(frozen=True)
class Verb:
    """What a word does: ``act`` is given the options; its further words are ``options.words[1:]``."""

    act: Callable[[Desk, Options], None]
    usage: str  # as it is written, for %hvd? and for errors
    doc: str
    more_words: int = 0  # how many words may follow
    anytime: bool = False  # also while a cell runs (from a subshell, or beside a background cell)


def _help(desk: Desk, _options: Options) -> None:
    desk.screen().say(usage())


def _doctor(desk: Desk, _options: Options) -> None:
    desk.screen().say(report(examine()))


VERBS: dict[str, Verb] = {
    "start": Verb(
        life.start,
        "%hvd start -np 4",
        "start 4 ranks (-H, --hostfile, --gpus, --mpi-args, --respawn auto; --keep [NAME]: they outlive this kernel)",
    ),
    "restart": Verb(
        life.restart, "%hvd restart", "the same ranks again, without their variables; --force: also while a job runs"
    ),
    "attach": Verb(
        attach.attach,
        "%hvd attach [NAME]",
        "take over ranks that an earlier kernel has started with --keep, with their variables",
        more_words=1,
        anytime=True,
    ),
    "respawn": Verb(
        respawn.act,
        "%hvd respawn [2]",
        "replace dead ranks, the others keep theirs (also --restore model,opt; --force for living ones)",
        more_words=1,
    ),
    "stop": Verb(life.stop, "%hvd stop", "end them; --force: also while a job runs"),
    "status": Verb(life.status, "%hvd status", "one line per rank", anytime=True),
    "stacks": Verb(stacks, "%hvd stacks", "where every rank is, also while a cell runs (--ranks 2)", anytime=True),
    "vars": Verb(
        variables.show, "%hvd vars", "the ranks' variables, and which ranks agree (%hvd vars a b)", MANY, anytime=True
    ),
    "check": Verb(check, "%hvd check model opt", "bit for bit, down to the part that differs (seeds, --strict)", MANY),
    "clean": Verb(
        clean,
        "%hvd clean",
        "end what clusters of dead kernels have left (--dry-run: list; --kept NAME: end kept ranks)",
        anytime=True,
    ),
    "help": Verb(_help, "%hvd help", "this list", anytime=True),
    "doctor": Verb(_doctor, "%hvd doctor", "what is missing on this machine, and how to get it", anytime=True),
}


def find(options: Options) -> Verb:
    """Return the verb that a line names; without a word it is status.

    Raises
    ------
    UsageError
        If it is none, or too many words follow it.
    """
    name = options.words[0] if options.words else "status"
    verb = VERBS.get(name)
    if verb is None:
        said = " ".join(options.words)
        raise UsageError(f"%hvd: {said!r} is not understood{nearest(name, [*VERBS])}; %hvd help lists its words")
    if len(options.words) > 1 + verb.more_words:
        raise UsageError(f"%hvd: {' '.join(options.words)!r} has too many words: write {verb.usage}")
    return verb


def usage() -> str:
    """Return the help of %hvd."""
    width = max(len(verb.usage) for verb in VERBS.values())
    lines = [f"    {verb.usage.ljust(width)}  {verb.doc}" for verb in VERBS.values()]
    return "Care for the cluster. %hvd alone is %hvd status.\n\n::\n\n" + "\n".join(lines) + "\n"
