"""Merge of the ranks' outputs: equal items once, with the label of their ranks. Pure.

Terms.
  label     the ranks of a group as text: ``[0]``, ``[0-3]``, ``[0,2-3]``
  merge     an item that several ranks have appears once, in its place between their other items, which are sorted by
            rank. The items of each rank keep their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from hvd_kernel.formatting.rank_labels import label

T = TypeVar("T")

Groups = list[tuple[tuple[int, ...], T]]
"""(ranks, item that they have in common), in the order of display."""


def merge(items: Mapping[int, Sequence[T]]) -> Groups[T]:
    """Merge the ranks' sequences of hashable items.

    An item is emitted when every rank that has it left has reached it; if all wait for each other (ranks have the same
    items in different orders), the item of the first rank is emitted.
    """
    cursor = dict.fromkeys((rank for rank in sorted(items) if items[rank]), 0)
    left: dict[T, Counter[int]] = {}
    for rank in cursor:
        for item in items[rank]:
            left.setdefault(item, Counter())[rank] += 1
    merged: Groups[T] = []
    while cursor:
        heads = {rank: items[rank][at] for rank, at in cursor.items()}
        chosen = _ready(heads, left)
        group = tuple(rank for rank, head in heads.items() if head == chosen)
        merged.append((group, chosen))
        _advance(group, chosen, items, cursor, left)
    return merged


def _ready(heads: Mapping[int, T], left: Mapping[T, Mapping[int, int]]) -> T:
    for item in heads.values():
        if all(heads[rank] == item for rank in left[item]):
            return item
    return next(iter(heads.values()))


def _advance(
    group: Sequence[int],
    item: T,
    items: Mapping[int, Sequence[T]],
    cursor: dict[int, int],
    left: Mapping[T, Counter[int]],
) -> None:
    for rank in group:
        cursor[rank] += 1
        left[item][rank] -= 1
        if not left[item][rank]:
            del left[item][rank]
        if cursor[rank] == len(items[rank]):
            del cursor[rank]


def labelled(ranks: Iterable[int], text: str) -> str:
    """Return text after its label; further lines are indented, so that arrays stay aligned."""
    head = label(ranks)
    first, *rest = text.split("\n")
    return "\n".join([f"{head} {first}".rstrip(), *(f"{' ' * len(head)} {line}".rstrip() for line in rest)])


def merge_lines(lines: Mapping[int, Sequence[str]]) -> str:
    """Return all ranks' lines as one text, with a newline at the end unless it is empty."""
    return "".join(f"{labelled(ranks, line)}\n" for ranks, line in merge(lines))
