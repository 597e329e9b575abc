"""``transform`` beside a model that is called row by row, as Horovod's is: 100,000 rows, in one run of one session."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.programs import text_of
from hvdtest.spark_driver import outcomes

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(1500)]

LEAST = 10
PROGRAMS = Path(__file__).parents[1] / "programs"
SCRIPT = text_of(PROGRAMS / "transform_speed.py")


def test_whole_batches_are_ten_times_as_fast_as_rows(tmp_path) -> None:
    by_row, ours, ratio = outcomes(SCRIPT, tmp_path, seconds=1200)["ratio"]
    print(f"row by row {by_row:.2f} s, transform {ours:.2f} s: {ratio:.1f} times")
    assert ratio >= LEAST
