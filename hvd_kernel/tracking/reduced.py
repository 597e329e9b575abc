"""The mean over ranks of what they have logged, and what is said where they disagree. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction


def values(names: Sequence[str], rows: Mapping[int, Sequence[float]], *, per_rank: bool) -> dict[str, float]:
    """Return each name's mean, and with ``per_rank`` each rank's value as ``name/rank_3``; a row for each rank."""
    means = {name: mean([row[column] for row in rows.values()]) for column, name in enumerate(names)}
    if not per_rank:
        return means
    return means | {f"{name}/rank_{rank}": row[i] for i, name in enumerate(names) for rank, row in rows.items()}


def mean(numbers: Sequence[float]) -> float:
    """Return the mean as if numbers had any length, rounded at the end alone; of infinities what a sum gives."""
    try:
        return float(sum(map(Fraction, numbers)) / len(numbers))
    except (OverflowError, ValueError):  # infinities, or what is not a number
        return sum(number / len(numbers) for number in numbers)


def difference(said: Iterable[tuple[Sequence[str], int | None]]) -> str:
    """Return a sentence that tells which ranks have logged what; ``said`` is each rank's names and step."""
    found: dict[str, list[int]] = {}
    for rank, (names, step) in enumerate(said):
        text = (", ".join(names) or "nothing") + ("" if step is None else f" at step {step}")
        found.setdefault(text, []).append(rank)
    told = "; ".join(f"{_ranks(ranks)}: {text}" for text, ranks in found.items())
    return f"hvd.log: ranks log different names or steps. {told}. Every rank has to log the same."


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
