"""Completers: what may follow a magic, or a sub-command of %hvd. A row of the tables names one. Pure.

Terms.
  symbol    what has been typed of the name so far
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """The names that are known where something is completed."""

    ranks: Callable[[str], list[str]]  # variables of the ranks that begin with a symbol
    notebook: Callable[[str], list[str]]  # the same, of the notebook
    jobs: Callable[[], list[str]]  # every job
    running: Callable[[], list[str]]  # jobs that have not ended


Completer = Callable[[Known, str], list[str]]


def nothing(_known: Known, _symbol: str) -> list[str]:
    """Complete nothing but options."""
    return []


def rank_variables(known: Known, symbol: str) -> list[str]:
    """Complete variables of the ranks."""
    return known.ranks(symbol)


def notebook_variables(known: Known, symbol: str) -> list[str]:
    """Complete variables of the notebook."""
    return known.notebook(symbol)


def every_job(known: Known, _symbol: str) -> list[str]:
    """Complete jobs."""
    return known.jobs()


def running_jobs(known: Known, _symbol: str) -> list[str]:
    """Complete jobs that can be cancelled, or all of them."""
    running = known.running()
    return [*running, "all"] if running else []


def choices(*these: str) -> Completer:
    """Complete one of these."""
    return lambda _known, _symbol: list(these)
