"""Command ``%hvd track``, without the notebook: its words become a choice, and the ranks are told.

Terms.
  ask   how a notebook calls a handler of ranks: ``ask(handler, ranks, content)``, each rank's answer by its number
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvd_kernel.tracking.sinks import check
from hvd_kernel.tracking.syntax import Choice, absolute, parse

NAME = "%hvd track"
Ask = Callable[[str, Sequence[int] | None, dict[str, Any]], Any]


def commanded(words: Sequence[str], folder: Path, *, per_rank: bool = False) -> Choice:
    """Return what the words choose, with every path from the root: a cell may change the ranks' folder.

    Raises
    ------
    ConfigError
        A word is not understood, or a package is missing.
    """
    choice = parse(",".join(words), NAME)
    for target in choice.targets:
        check(target)
    return absolute(replace(choice, per_rank=choice.per_rank or per_rank), folder)


def tell(ask: Ask, choice: Choice) -> str:
    """Have all ranks track there, as a new run; return what is to be said of places where that failed at once."""
    answers = ask("track", None, {"choice": str(choice), "run": uuid.uuid4().hex})
    return "".join(f"{text}\n" for content, _ in answers.values() for text in content["dropped"])


def tell_fresh(ask: Ask, n: int, fresh: Sequence[int]) -> None:
    """Have ranks that replace others track what a living one tracks: all reduce, or none."""
    living = next((rank for rank in range(n) if rank not in fresh), None)
    if fresh and living is not None:
        content, _ = ask("track", [living], {})[living]
        ask("track", fresh, {"choice": content["choice"], "run": content["run"]})


def sentence(choice: Choice) -> str:
    """Say what is tracked."""
    if not choice.targets:
        return "nothing is tracked\n"
    also = ", and every rank's own as name/rank_N" if choice.per_rank else ""
    places = ", ".join(map(str, choice.targets))
    return f"hvd.log goes to {places}: the mean over the ranks{also}; every rank has to call it\n"
