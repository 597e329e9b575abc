"""PySpark 3.5, the older of the two: one run and one estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of(PROGRAMS / "older.py")
HOW = {"version": "spark35"}


def test_version_is_that_of_the_environment(results: Any) -> None:
    assert results["version"] == "3.5"


def test_ranks_run(results: Any) -> None:
    assert results["run"] == [[0, 2, 6], [1, 2, 6]]


def test_ranks_of_an_elastic_job_run(results: Any) -> None:
    assert results["elastic"] == [[0, 2, 2], [1, 2, 2]]


def test_exception_of_a_rank_is_the_cause(results: Any) -> None:
    assert [results["cause"][name] for name in ("raised", "cause", "args")] == [
        "RankFailed",
        "ValueError",
        ["shard", "1"],
    ]


def test_an_estimator_fits_and_predicts(results: Any) -> None:
    assert results["estimator"] == [40, True]
