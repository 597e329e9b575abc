"""Rows of parquet files assigned to ranks: each row is used, and all ranks make the same number of steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from hvd_kernel.spark.shares import Piece, RowGroup, share, steps

SIZES = some.lists(some.integers(1, 40), min_size=1, max_size=8)


def groups(sizes: list[int]) -> list[RowGroup]:
    return [RowGroup(f"part-{at}", 0, rows, 8 * rows) for at, rows in enumerate(sizes)]


def rows(pieces: list[Piece]) -> list[tuple[str, int]]:
    return [(piece.group.path, row) for piece in pieces for row in range(piece.start, piece.stop)]


@given(SIZES, some.integers(1, 9), some.one_of(some.none(), some.integers(0, 99)))
def test_even_shares_have_equal_length_and_hold_every_row(sizes: list[int], size: int, order: int | None) -> None:
    every = [rows(share(groups(sizes), rank, size, order=order)) for rank in range(size)]
    assert {len(one) for one in every} == {-(-sum(sizes) // size)}
    assert set().union(*every) == {(f"part-{at}", row) for at, count in enumerate(sizes) for row in range(count)}


@given(SIZES, some.integers(1, 9))
def test_uneven_shares_hold_every_row_once(sizes: list[int], size: int) -> None:
    every = [row for rank in range(size) for row in rows(share(groups(sizes), rank, size, even=False))]
    assert sorted(every) == sorted((f"part-{at}", row) for at, count in enumerate(sizes) for row in range(count))


def test_the_order_of_groups_changes_with_its_number() -> None:
    first = [piece.group.path for piece in share(groups([2] * 8), 0, 1, order=1)]
    assert first == [piece.group.path for piece in share(groups([2] * 8), 0, 1, order=1)]
    assert first != [piece.group.path for piece in share(groups([2] * 8), 0, 1, order=2)]


@pytest.mark.parametrize(
    ("count", "size", "batch", "expected"), [(4, 2, 32, 1), (100, 2, 32, 2), (65, 2, 32, 2), (66, 2, 11, 3)]
)
def test_steps_equal_those_of_the_longest_share(count: int, size: int, batch: int, expected: int) -> None:
    assert steps(count, size, batch) == expected
