"""``hvd_kernel.spark.run_elastic`` on real executors: a failed rank, a lost executor, and workers that start and exit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of
from hvdtest.spark_driver import outcomes

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of(PROGRAMS / "elastic.py")
STANDALONE = text_of(PROGRAMS / "standalone.py")


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Return the results of an elastic job on a standalone master whose workers start and exit."""
    return outcomes(STANDALONE, tmp_path_factory.mktemp("standalone"))


def test_failed_rank_is_restarted_and_the_others_continue(results: Mapping[str, Any]) -> None:
    assert [each[4] for each in results["rank_fails"]] == [6] * len(results["rank_fails"])
    assert results["rank_fails"][0][:2] in ([0, 1], [0, 2])


def test_task_of_a_lost_executor_is_restarted_on_another(results: Mapping[str, Any]) -> None:
    assert results["executor_lost"] == [[0, 2, 0, 2, 6], [1, 2, 1, 2, 6]]


def test_sizes_that_contradict_each_other_are_refused(results: Mapping[str, Any]) -> None:
    assert results["contradiction"]["text"] == "min_np=3 is above np=2, but is the least of ranks."
    assert results["two_names"]["text"] == "min_num_proc=2 and min_np=1 are the same thing: keep min_num_proc."


def test_ranks_follow_the_workers_of_a_standalone_master(standalone: Mapping[str, Any]) -> None:
    places, sizes, is_equal = standalone["workers_come_and_go"]
    assert places == [[0, 2], [1, 2]]
    assert sizes == [1, 2, 1, 2]
    assert is_equal
