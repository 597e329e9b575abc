"""Ranks as text: ``0,2-3``, ``[0,2-3]``, ``ranks 0-3``. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_PARTS = 12
"""Parts between commas in a message."""


def spans(ranks: Iterable[int]) -> str:
    """Return ranks as text: ``0,2-3``."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def folded(ranks: Iterable[int]) -> str:
    """Return ranks for a message, as ``spans`` but of bounded length: ``0,2,4,... (500 ranks)``."""
    text, most = spans(every := set(ranks)), _PARTS
    parts = text.split(",")
    return text if len(parts) <= most else f"{','.join(parts[:most])},... ({len(every)} ranks)"


def label(ranks: Iterable[int]) -> str:
    """Return ranks as the label of a line: ``[0,2-3]``."""
    return f"[{folded(ranks)}]"


def rank_list(ranks: Iterable[int]) -> str:
    """Return ranks for a sentence: ``rank 2``, ``ranks 0-3``."""
    text = folded(ranks)
    return f"rank {text}" if text.isdigit() else f"ranks {text}"
