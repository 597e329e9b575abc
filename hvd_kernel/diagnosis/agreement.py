"""Agreement of ranks: summarize one digest per rank in a phrase. Pure.

Terms.
  majority   more than half of the ranks, with the same digest: all other ranks differ
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hvd_kernel.formatting.rank_labels import label, rank_list
from hvd_kernel.formatting.units import plural


def groups(digests: Mapping[int, str]) -> list[tuple[int, ...]]:
    """Return the ranks that agree with each other, the largest group first, then by rank."""
    by_digest: dict[str, list[int]] = {}
    for rank in sorted(digests):
        by_digest.setdefault(digests[rank], []).append(rank)
    return sorted(map(tuple, by_digest.values()), key=lambda ranks: (-len(ranks), ranks))


def difference(digests: Mapping[int, str]) -> str:
    """Return which ranks differ: ``rank 2 differs``, ``[0-1] [2-3] differ``; "" if all agree."""
    first, *others = groups(digests)
    if not others:
        return ""
    if 2 * len(first) > len(digests):
        return f"{_joined(others)} {_verb(others, 'differ')}"
    if len(first) == 1:
        return "different on every rank"
    return f"{' '.join(map(label, (first, *others)))} differ"


def agreement(digests: Mapping[int, str]) -> str:
    """Return which ranks agree and which differ: ``ranks 0-1,3 agree, rank 2 differs``."""
    first, *others = groups(digests)
    if others and 2 * len(first) > len(digests):
        agree = "agrees" if len(first) == 1 else "agree"
        return f"{rank_list(first)} {agree}, {_joined(others)} {_verb(others, 'differ')}"
    return difference(digests)


def same(count: int) -> str:
    """Return the phrase for a value that all ranks agree on."""
    return f"same on {plural(count, 'rank')}"


def where(ranks: Iterable[int]) -> str:
    """Return the phrase for a name that only these ranks have."""
    return f"only on {rank_list(ranks)}"


def _joined(parts: Iterable[tuple[int, ...]]) -> str:
    return rank_list(rank for ranks in parts for rank in ranks)


def _verb(parts: list[tuple[int, ...]], verb: str) -> str:
    return f"{verb}s" if sum(map(len, parts)) == 1 else verb
