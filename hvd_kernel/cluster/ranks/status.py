"""One rank's process, as ``Session.status`` tells it, and a choice of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_kernel.errors import ClusterError


@dataclass(frozen=True)
class RankStatus:
    """One rank's process."""

    rank: int
    pid: int
    host: str
    alive: bool
    device: str
    why: str = ""  # it has died, once that is known
    since: int = 0  # the generation in which it came
    identity: int = -1  # its number at the start, or one that nobody had; whoever replaces it has the same


def chosen_ranks(ranks: Sequence[int] | None, n: int) -> tuple[int, ...]:
    """Return a choice among n ranks in order; None: all.

    Raises
    ------
    ClusterError
        It is empty, or names a rank that is none.
    """
    chosen = tuple(range(n)) if ranks is None else tuple(sorted(set(ranks)))
    foreign = [rank for rank in chosen if not 0 <= rank < n]
    if foreign or not chosen:
        raise ClusterError(f"no such rank: {foreign or 'an empty choice'}; this cluster has ranks 0 to {n - 1}")
    return chosen
