"""``RayExecutor`` on a real Ray of two nodes: placement of ranks, state across calls, and failing calls."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import text_of

from hvd_kernel.ray.adapter import NOT_STARTED
from hvd_kernel.ray.static import DIED as WHOLE

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
DIED = WHOLE.partition("{reason}")[0] + "{reason}"
HOST = socket.gethostname()
SCRIPT = text_of("failing_function", PROGRAMS / "executor.py")


def test_ranks_are_numbered_node_by_node(results: Mapping[str, Any]) -> None:
    assert results["start"] is None
    assert results["ranks"] == [[0, 3, 0, 2, 0, 12], [1, 3, 1, 2, 0, 12], [2, 3, 0, 1, 1, 12]]
    assert results["references"] == [[0, 3, 0, 2, 0, 6], [1, 3, 1, 2, 0, 6], [2, 3, 0, 1, 1, 6]]


def test_hosts_get_the_requested_number_of_ranks(results: Mapping[str, Any]) -> None:
    assert results["spread"] == [[0, 4, 0, 2, 0, 10], [1, 4, 1, 2, 0, 10], [2, 4, 0, 2, 1, 10], [3, 4, 1, 2, 1, 10]]


def test_object_of_each_rank_lives_across_calls(results: Mapping[str, Any]) -> None:
    assert results["state"] == [[16] * 3, [22] * 3]
    assert results["one"] == 22


def test_ranks_have_the_variables_and_the_ids_of_their_nodes(results: Mapping[str, Any]) -> None:
    assert results["variables"] == [["3", True, "2"], ["3", True, "2"], ["3", True, "1"]]


def test_each_rank_sees_all_gpus_of_its_node(results: Mapping[str, Any]) -> None:
    assert results["devices"] == [["0", "1"]] * 4


def test_exception_of_a_rank_is_the_cause_and_next_call_works(results: Mapping[str, Any]) -> None:
    failed = results["cause"]
    assert (failed["raised"], failed["cause"], failed["args"]) == ("RankFailed", "Bad", ["shard", "1"])
    assert failed["text"].startswith("rank 1 of 3 raised Bad: ('shard', 1)\n\nTraceback (most recent call last):\n")
    assert "hvd_kernel" not in failed["text"], "the frames are the user's"
    assert results["after_that"] == [[28] * 3, [[0, 3, 0, 2, 0, 6], [1, 3, 1, 2, 0, 6], [2, 3, 0, 1, 1, 6]]]


def test_idle_ranks_are_interrupted_when_one_fails(results: Mapping[str, Any]) -> None:
    assert (results["busy"]["raised"], results["busy"]["args"]) == ("RankFailed", ["alone"])


def test_a_reference_raises_the_exception_itself(results: Mapping[str, Any]) -> None:
    assert results["raised_by_reference"] == ["shard", 1]
    assert results["after_a_reference"] == [34] * 3


def test_callbacks_get_what_ranks_log_in_order(results: Mapping[str, Any]) -> None:
    assert results["values"] == [[{"row": 0}, {"row": 1}], [0, 0, 1, 1, 2, 2]]


def test_exception_of_a_callback_is_raised(results: Mapping[str, Any]) -> None:
    assert results["refusing"]["text"] == "('value', 5)"


def test_dead_rank_is_named_with_rays_error(results: Mapping[str, Any]) -> None:
    assert (results["death"]["raised"], results["death"]["cause"]) == ("RankDied", "ActorDiedError")
    assert results["death"]["text"].startswith(DIED.format(rank=1, np=3, host=HOST, reason="The actor died"))


@pytest.mark.parametrize("call", ["run", "run_remote", "execute"])
def test_calls_after_a_death_name_the_rank(call: str, results: Mapping[str, Any]) -> None:
    later = results[f"{call}_later"]
    assert (later["raised"], later["cause"]) == ("RankDied", "ActorDiedError")
    assert later["text"].startswith(DIED.format(rank=1, np=3, host=HOST, reason="The actor died"))


def test_single_call_works_until_rank_0_dies(results: Mapping[str, Any]) -> None:
    assert results["single_later"] == 34
    dead = results["single_dead"]
    assert (dead["raised"], dead["cause"]) == ("RankDied", "ActorDiedError")
    assert dead["text"].startswith(DIED.format(rank=0, np=3, host=HOST, reason="The actor died"))


def test_shutdown_releases_all_resources(results: Mapping[str, Any]) -> None:
    assert results["given_back"] is True
    assert results["ended"]["text"] == NOT_STARTED


def test_exception_of_the_class_is_the_cause(results: Mapping[str, Any]) -> None:
    assert (results["raising_class"]["raised"], results["raising_class"]["args"]) == ("RankFailed", ["made"])


def test_missing_resources_are_reported(results: Mapping[str, Any]) -> None:
    assert results["no_room"]["raised"] == "TimeoutError"
    begin = (
        "Placement group creation timed out. Make sure your cluster either has enough resources or use an autoscaling "
        "cluster. Current resources available: {"
    )
    assert results["no_room"]["text"].startswith(begin)
    assert results["no_room"]["text"].count("{'CPU': 1}") == 9


def test_placement_group_of_the_caller_is_used_and_kept(results: Mapping[str, Any]) -> None:
    assert results["within_a_group"] == [[True, "CREATED"], [False, "CREATED"]]
