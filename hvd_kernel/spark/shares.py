"""Which rows each rank has: row groups of parquet files, in an order that all ranks know, cut by rows. Pure.

In each epoch the groups are put into another order, and their rows, one behind the other, are cut into shares of one
length. The last share is filled with the first rows again. So all ranks take the same number of steps and each row is
seen.

Terms.
  group  a row group: what a parquet file is read by
  piece  rows of one group: [start, stop)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RowGroup:
    """One row group: number ``index`` of a file (a path as the store's filesystem takes it), its rows and bytes."""

    path: str
    index: int
    rows: int
    size: int


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of a group."""

    group: RowGroup
    start: int
    stop: int


def share(
    groups: Sequence[RowGroup], rank: int, size: int, *, order: int | None = None, even: bool = True
) -> list[Piece]:
    """Return a rank's pieces.

    Parameters
    ----------
    groups
        All of them, in the same order on all ranks; one row at least.
    rank, size
        Whose share, and of how many.
    order
        A seed of the groups' order; None: as they are.
    even
        Whether all shares have the same length, and some rows are in two; else each row is in one share.
    """
    rows = sum(group.rows for group in groups)
    if order is not None:
        groups = [groups[at] for at in np.random.default_rng(order).permutation(len(groups))]
    length = math.ceil(rows / size)
    start, stop = (rank * length, (rank + 1) * length) if even else (rank * rows // size, (rank + 1) * rows // size)
    return list(_cut(groups, rows, start, stop))


def steps(rows: int, size: int, batch: int) -> int:
    """Return the number of batches of each rank in an epoch."""
    return math.ceil(math.ceil(rows / size) / batch)


def _cut(groups: Sequence[RowGroup], rows: int, start: int, stop: int) -> Iterator[Piece]:
    """Rows [start, stop) of all groups one behind the other, again and again."""
    while start < stop:
        before = start - start % rows
        for group in groups:
            after = before + group.rows
            if start < after and before < stop and start < stop:
                end = min(stop, after)
                yield Piece(group, start - before, end - before)
                start = end
            before = after
