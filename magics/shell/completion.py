"""Completion of the magics: their flags and sub-commands, and names where a magic wants some. Made from their table."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from hvd_kernel.magics.commands.index import MAGICS
from hvd_kernel.magics.commands.subcommands.table import SUBCOMMANDS
from hvd_kernel.magics.jobs import Jobs
from hvd_kernel.magics.shell.completers import Known
from hvd_kernel.magics.shell.rank_names import RankNames


def install(shell: Any, names: RankNames, jobs: Jobs) -> None:
    """Tell IPython's completer; it asks for a line that begins with one of our magics."""

    def local(symbol: str) -> list[str]:
        return [name for name in shell.user_ns if name.startswith(symbol) and not name.startswith("_")]

    known = Known(
        ranks=lambda symbol: list(names.matching(symbol)[1]),
        notebook=local,
        jobs=lambda: [job.name for job in jobs],
        running=lambda: [job.name for job in jobs if not job.ended.is_set()],
    )
    for magic in MAGICS:
        shell.set_hook("complete_command", partial(_complete, known), str_key=magic)


def uninstall(shell: Any) -> None:
    """Take it back: IPython has no call for that, but a table."""
    for magic in MAGICS:
        shell.strdispatchers["complete_command"].strs.pop(magic, None)


def _complete(known: Known, _completer: object, event: SimpleNamespace) -> list[str]:
    magic = MAGICS[event.command]
    options = [spelling for flag in magic.flags for spelling in flag.spellings]
    if event.symbol.startswith("-"):
        return options
    head = event.line[: len(event.line) - len(event.symbol)].split()
    named = SUBCOMMANDS.get(head[1]) if event.command == "%hvd" and len(head) > 1 else None
    found = (magic if named is None else named).completes(known, event.symbol)
    return found or (options if not event.symbol else [])
