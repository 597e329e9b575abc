"""Assignment of rows to ranks: row groups of parquet files, in the same order on all ranks, split by rows. Pure.

In each epoch the groups are shuffled, and the sequence of their rows is split into shares of equal length; the last
share is padded with the first rows. So all ranks run the same number of steps, and every row is used.

Terms.
  group  a row group, the unit in which a parquet file is read
  piece  rows of one group: [start, stop)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RowGroup:
    """Row group number ``index`` of a file (a path on the store's filesystem), with its number of rows and bytes."""

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
        All groups, in the same order on all ranks, with at least one row.
    rank, size
        Rank and number of ranks.
    order
        Seed for shuffling the groups; None: not shuffled.
    even
        Whether all shares have the same length, so that some rows are in two shares; otherwise each row is in one.
    """
    rows = sum(group.rows for group in groups)
    if order is not None:
        groups = [groups[i] for i in np.random.default_rng(order).permutation(len(groups))]
    length = math.ceil(rows / size)
    start, stop = (rank * length, (rank + 1) * length) if even else (rank * rows // size, (rank + 1) * rows // size)
    return list(_cut(groups, rows, start, stop))


def steps(rows: int, size: int, batch: int) -> int:
    """Return the number of batches of each rank in an epoch."""
    return math.ceil(math.ceil(rows / size) / batch)


def _cut(groups: Sequence[RowGroup], rows: int, start: int, stop: int) -> Iterator[Piece]:
    """Yield rows [start, stop) of the concatenated groups, repeated cyclically."""
    while start < stop:
        before = start - start % rows
        for group in groups:
            after = before + group.rows
            if start < after and before < stop and start < stop:
                end = min(stop, after)
                yield Piece(group, start - before, end - before)
                start = end
            before = after
