"""Completion of the magics' options and verbs, and of names where a magic wants some."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from hvd_kernel.magics.commands.index import VERBS
from hvd_kernel.magics.jobs import Jobs
from hvd_kernel.magics.options import TABLE, flags
from hvd_kernel.magics.shell.rank_names import RankNames

WORDS = {"%hvd": list(VERBS), "%hvdauto": ["on", "off"]}
_WORDS_OF_VERBS = {"%hvd timeline": ["start", "stop", "show"]}

_OF_RANKS = {"%hvdpull", "%hvd vars", "%hvd check"}
"""What is followed by names that live on the ranks."""

_OF_JOBS = {"%hvdjobs", "%hvdcancel"}

Finder = Callable[[str], list[str]]


def install(shell: Any, names: RankNames, jobs: Jobs) -> None:
    """Tell IPython's completer; it asks for a line that begins with one of our magics."""

    def remote(symbol: str) -> list[str]:
        return list(names.matching(symbol)[1])

    def local(symbol: str) -> list[str]:
        return [name for name in shell.user_ns if name.startswith(symbol) and not name.startswith("_")]

    def of_jobs(command: str) -> list[str]:
        alive = [job.name for job in jobs if not job.ended.is_set()]
        return [job.name for job in jobs] if command == "%hvdjobs" else [*alive, "all"] if alive else []

    for magic in {*TABLE, *WORDS}:
        shell.set_hook("complete_command", partial(_complete, remote, local, of_jobs), str_key=magic)


def uninstall(shell: Any) -> None:
    """Take it back: IPython has no call for that, but a table."""
    for magic in {*TABLE, *WORDS}:
        shell.strdispatchers["complete_command"].strs.pop(magic, None)


def _complete(remote: Finder, local: Finder, of_jobs: Finder, _completer: object, event: SimpleNamespace) -> list[str]:
    options = flags(event.command) if event.command in TABLE else []
    if event.symbol.startswith("-"):
        return options
    head = event.line[: len(event.line) - len(event.symbol)].split()
    if not _OF_RANKS.isdisjoint({event.command, " ".join(head[:2])}):
        return remote(event.symbol)
    if words := _WORDS_OF_VERBS.get(" ".join(head)):
        return words
    if event.command == "%hvdpush":
        return local(event.symbol)
    if event.command in _OF_JOBS and (found := of_jobs(event.command)):
        return found
    return WORDS.get(event.command, []) or (options if not event.symbol else [])
