"""Completers of the arguments of a magic, or of a sub-command of %hvd; the rows of the tables name them. Pure.

Terms.
  symbol    the part of the name typed so far
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Sources of names for completion."""

    ranks: Callable[[str], list[str]]  # variables of the ranks that start with a symbol
    notebook: Callable[[str], list[str]]  # the same, of the notebook
    jobs: Callable[[], list[str]]  # every job
    running: Callable[[], list[str]]  # jobs that have not ended


Completer = Callable[[Names, str], list[str]]


def nothing(_names: Names, _symbol: str) -> list[str]:
    """Complete options alone."""
    return []


def rank_variables(names: Names, symbol: str) -> list[str]:
    """Complete variables of the ranks."""
    return names.ranks(symbol)


def notebook_variables(names: Names, symbol: str) -> list[str]:
    """Complete variables of the notebook."""
    return names.notebook(symbol)


def every_job(names: Names, _symbol: str) -> list[str]:
    """Complete jobs."""
    return names.jobs()


def running_jobs(names: Names, _symbol: str) -> list[str]:
    """Complete jobs that can be cancelled, or all of them."""
    running = names.running()
    return [*running, "all"] if running else []


def choices(*words: str) -> Completer:
    """Return a completer of these words."""
    return lambda _names, _symbol: list(words)
