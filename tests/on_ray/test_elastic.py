"""Elastic jobs on Ray: a node is lost and another one added, a node is removed with notice, an actor is killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(1300)]
LONG_S = 1200  # beside a load of 25 a cluster takes 60 s to start, and each job 100 s

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of(PROGRAMS / "elastic.py")
HOW = {"seconds": LONG_S}


def test_training_survives_a_lost_node_and_a_new_one_joins(results: Mapping[str, Any]) -> None:
    check_lost_and_added(*results["lost_and_added"])


def test_training_survives_a_killed_raylet(results: Mapping[str, Any]) -> None:
    check_lost_and_added(*results["lost_hard"])


def check_lost_and_added(sizes: list[int], places: list[list[int]], is_exact: bool) -> None:
    assert sizes[-3:] == [3, 2, 3], "it may begin with the two that it needs"
    assert places == [[0, 3, 0, 2], [1, 3, 1, 2], [2, 3, 0, 1]]
    assert is_exact, "each step is counted once"


def test_node_removed_by_discovery_is_left_at_a_commit(results: Mapping[str, Any]) -> None:
    (sizes, places, is_exact), has_died = results["taken_in_time"]
    assert sizes[-3:] == [3, 1, 2], "it may begin with fewer"
    assert places == [[0, 2, 0, 2], [1, 2, 1, 2]]
    assert is_exact
    assert not has_died


def test_killed_actor_is_replaced_by_another(results: Mapping[str, Any]) -> None:
    sizes, places, is_exact = results["killed"]
    assert sizes[0] == sizes[-1] == 2
    assert [place[:2] for place in places] == [[0, 2], [1, 2]]
    assert is_exact


def test_exception_of_a_rank_is_the_cause(results: Mapping[str, Any]) -> None:
    failed = results["cause"]
    assert (failed["raised"], failed["cause"], failed["args"]) == ("RankFailed", "ValueError", ["shard", "1"])


def test_each_rank_makes_its_object(results: Mapping[str, Any]) -> None:
    assert results["objects"] in ([[4, "1"]], [[4, "1"], [4, "1"]])


def test_too_few_places_are_reported(results: Mapping[str, Any]) -> None:
    assert results["too_few"]["raised"] == "ClusterError"


def test_unsupported_calls_are_refused_with_horovods_message(results: Mapping[str, Any]) -> None:
    assert results["references"]["raised"] == results["single"]["raised"] == "NotImplementedError"
    assert results["references"]["text"] == (
        "ObjectRefs cannot be returned from Elastic runs as the workers are ephemeral"
    )
    assert results["single"]["text"] == (
        "Elastic mode does not support execute_single. Please use the execute method instead"
    )
