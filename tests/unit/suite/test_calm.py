"""Runs in a row of the default tier beside a load: counted back to the last one in which a test failed."""

from __future__ import annotations

import pytest
from suite import calm


@pytest.mark.parametrize(
    ("failed", "in_a_row"),
    [([], 0), ([0], 1), ([1], 0), ([1, 0, 0], 2), ([0, 0, 2], 0), ([0, 3, 0, 1, 0, 0, 0], 3)],
)
def test_runs_are_counted_since_the_last_failure(failed: list[int], in_a_row: int) -> None:
    assert calm.in_a_row([{"failed": each} for each in failed]) == in_a_row
