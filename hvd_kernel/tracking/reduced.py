"""The mean over ranks of logged values, and the error if ranks log different names. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from hvd_kernel.formatting.rank_labels import rank_list


def values(names: Sequence[str], rows: Mapping[int, Sequence[float]], *, per_rank: bool) -> dict[str, float]:
    """Return the mean of each column of ``rows``, with ``per_rank`` also each rank's value as ``name/rank_3``."""
    means = {name: mean([row[column] for row in rows.values()]) for column, name in enumerate(names)}
    if not per_rank:
        return means
    return means | {f"{name}/rank_{rank}": row[i] for i, name in enumerate(names) for rank, row in rows.items()}


def mean(numbers: Sequence[float]) -> float:
    """Return the exactly rounded mean; with infinities and NaN, the mean in floating point."""
    try:
        return float(sum(map(Fraction, numbers)) / len(numbers))
    except (OverflowError, ValueError):  # infinities and NaN are no fractions
        return sum(number / len(numbers) for number in numbers)


def difference(logged: Iterable[tuple[Sequence[str], int | None]]) -> str:
    """Return an error message that lists the ranks by what they logged; ``logged`` has the names and step by rank."""
    ranks_by_text: dict[str, list[int]] = {}
    for rank, (names, step) in enumerate(logged):
        text = (", ".join(names) or "nothing") + ("" if step is None else f" at step {step}")
        ranks_by_text.setdefault(text, []).append(rank)
    groups = "; ".join(f"{rank_list(ranks)}: {text}" for text, ranks in ranks_by_text.items())
    return f"hvd.log: ranks log different names or steps. {groups}. Every rank has to log the same."
