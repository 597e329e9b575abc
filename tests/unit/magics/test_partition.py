"""``--scatter`` and ``--gather``: a value's parts for the ranks, and what ranks' parts make up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.partition import joined, split


@given(st.lists(st.integers()), st.integers(min_value=1, max_value=9))
def test_parts_joined_are_the_value_and_the_longer_ones_come_first(value: list[int], count: int) -> None:
    parts = split("x", value, count)
    assert len(parts) == count
    assert joined("x", dict(enumerate(parts))) == value
    lengths = [len(part) for part in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


class Table:
    """A stand-in for a table whose own brackets choose columns, as those of pandas do."""

    def __init__(self, rows: list[int]) -> None:
        self.iloc = rows

    def __len__(self) -> int:
        return len(self.iloc)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (np.arange(10).reshape(5, 2), [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]),
        (torch.arange(3), [[0, 1], [2]]),
        ((7,), [[7], []]),
        ("abc", [["a", "b"], ["c"]]),
        (range(4), [[0, 1], [2, 3]]),
        (Table([1, 2, 3]), [[1, 2], [3]]),
    ],
    ids=["array", "tensor", "tuple", "text", "range", "table"],
)
def test_it_is_cut_along_the_first_axis(value: Any, parts: list[Any]) -> None:
    assert [np.asarray(list(part)).tolist() for part in split("x", value, 2)] == parts


@pytest.mark.parametrize(
    "parts",
    [
        [np.arange(6.0).reshape(3, 2), np.arange(4.0).reshape(2, 2)],
        [torch.arange(6.0).reshape(3, 2), torch.arange(4.0).reshape(2, 2)],
    ],
    ids=["array", "tensor"],
)
def test_arrays_and_tensors_stay_what_they_are(parts: list[Any]) -> None:
    both = joined("y", {1: parts[1], 0: parts[0]})
    assert type(both) is type(parts[0])
    assert both.dtype == parts[0].dtype
    assert both.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [0.0, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize(("parts", "whole"), [(["ab", "c"], "abc"), ([(1, 2), (3,)], (1, 2, 3)), ([b"a", b""], b"a")])
def test_sequences_stay_what_they_are(parts: list[Any], whole: Any) -> None:
    assert joined("y", dict(enumerate(parts))) == whole


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (3.5, "`x` (float) cannot be scattered: it has no parts; --push x sends all of it to every rank"),
        ({"a": 1}, "`x` (dict) cannot be scattered: it has no order; --push x sends all of it to every rank"),
        (
            torch.tensor(1.0),
            "`x` (Tensor) cannot be scattered: it has no length; --push x sends all of it to every rank",
        ),
    ],
    ids=["number", "dict", "tensor without an axis"],
)
def test_what_has_no_parts_is_named(value: Any, why: str) -> None:
    with pytest.raises(UsageError) as raised:
        split("x", value, 2)
    assert str(raised.value) == why


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (
            {0: [1], 1: (2,)},
            "`y` cannot be gathered: it is list on rank 0, tuple on rank 1; --pull y brings each rank's",
        ),
        (
            {0: 1.0, 1: 2.0},
            "`y` (float) cannot be gathered: there is no way to put two of them one after the other; --pull y brings each rank's",
        ),
    ],
    ids=["two kinds", "numbers"],
)
def test_what_makes_up_nothing_is_named(parts: dict[int, Any], why: str) -> None:
    with pytest.raises(UsageError) as raised:
        joined("y", parts)
    assert str(raised.value) == why


def test_shapes_that_do_not_fit_are_told_as_the_library_tells_them() -> None:
    with pytest.raises(UsageError, match=r"`y` cannot be gathered: .*dimension.*--pull y brings each rank's"):
        joined("y", {0: np.zeros((2, 2)), 1: np.zeros((2, 3))})
