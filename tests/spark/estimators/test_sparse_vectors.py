"""SparseVectors as features and labels: stored with or without zeros, the ranks and the model get the same values.

The first cases need no session; values are small fractions of powers of two, so that no sum rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parents[1] / "programs"
SCRIPT = text_of(PROGRAMS / "sparse_vectors.py")
HOW = {"seconds": 800}
DENSE = [[1.0, 0.0, 0.0], [2.0, 0.0, 3.0], [0.0, 0.0, 0.0], [0.0, 4.0, 5.0]]


def test_vectors_of_both_forms_are_made_dense(results: Mapping[str, Any]) -> None:
    assert results["made_dense"] == [DENSE, DENSE[1:3], [DENSE[3], DENSE[0]], [0, 3]]


def test_column_is_sparse_if_each_row_is(results: Mapping[str, Any]) -> None:
    assert results["kinds"] == [["dense", [3]], ["sparse", [3]], ["sparse", [3]], ["sparse", None]]


@pytest.mark.parametrize("case", ["another_length", "none_there"])
def test_vector_of_another_length_or_none_is_refused(results: Mapping[str, Any], case: str) -> None:
    assert results[case]["raised"] == "ValueError"
    assert results[case]["text"] == "Column x: every row must hold 3 numbers, but one holds more, fewer or none."


def test_batches_are_dense_and_hold_each_row(results: Mapping[str, Any]) -> None:
    assert results["batches"] == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], [True, True], True]


def test_zeros_use_memory_only_in_batches(results: Mapping[str, Any]) -> None:
    seen, changed, is_small = results["memory"]
    assert seen == [[2, "ndarray", 1000]] * 5
    assert changed == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert is_small, "10 rows of 1,000 numbers are 80,000 bytes"


def test_sparse_columns_stored_without_zeros_train_the_same(results: Mapping[str, Any]) -> None:
    array = "list<element: double not null>"
    struct = (
        "struct<type: int8 not null, size: int32, indices: list<element: int32 not null>, "
        "values: list<element: double not null>>"
    )
    assert results["fits"] == {
        "false": [["dense", "sparse"], [array, array], True, True],
        "true": [["sparse", "sparse"], [struct, struct], True, True],
    }


def test_ranks_read_vectors_stored_without_zeros(results: Mapping[str, Any]) -> None:
    assert results["several_ranks"] is True


def test_predictions_are_sparse_if_each_label_was(results: Mapping[str, Any]) -> None:
    assert results["predictions"] == [
        ["(2,[],[])", "(2,[0],[0.5])", "(2,[1],[1.0])"],
        ["[0.0,0.0]", "[0.5,0.0]", "[0.0,1.0]"],
    ]
