"""Command ``%hvd track``, without the notebook: parses its arguments, and sends the choice to the ranks.

Terms.
  ask   function that calls a handler on ranks: ``ask(handler, ranks, content)`` returns the answers by rank
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
    """Parse the arguments; make all paths absolute, as a cell may change the ranks' working directory.

    Raises
    ------
    ConfigError
        An argument is invalid, or a package is not installed.
    """
    choice = parse(",".join(words), NAME)
    for target in choice.targets:
        check(target)
    return absolute(replace(choice, per_rank=choice.per_rank or per_rank), folder)


def tell(ask: Ask, choice: Choice) -> str:
    """Start a new run with these targets on all ranks; return the messages of targets that failed immediately."""
    answers = ask("track", None, {"choice": str(choice), "run": uuid.uuid4().hex})
    return "".join(f"{text}\n" for content, _ in answers.values() for text in content["dropped"])


def tell_fresh(ask: Ask, n: int, fresh: Sequence[int]) -> None:
    """Copy the targets and the run of a surviving rank to new ranks: either all ranks reduce values, or none."""
    survivor = next((rank for rank in range(n) if rank not in fresh), None)
    if fresh and survivor is not None:
        content, _ = ask("track", [survivor], {})[survivor]
        ask("track", fresh, {"choice": content["choice"], "run": content["run"]})


def sentence(choice: Choice) -> str:
    """Return a sentence about what is tracked."""
    if not choice.targets:
        return "nothing is tracked\n"
    also = ", and every rank's own as name/rank_N" if choice.per_rank else ""
    places = ", ".join(map(str, choice.targets))
    return f"hvd.log goes to {places}: the mean over the ranks{also}; every rank has to call it\n"
