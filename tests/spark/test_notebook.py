"""``%%hvdrun --on spark`` on a real Spark with two executors of their own: ranks in a barrier stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.programs import assert_interrupted, assert_respawned, text_of

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = text_of("notebook_cells", PROGRAMS / "notebook.py")


def test_missing_requirements_are_reported(results: Mapping[str, Any]) -> None:
    assert results["without_session"][1] == (
        "UsageError: Could not find an active SparkContext, are you running in a PySpark session?"
    )
    assert results["too_many"][1].startswith(
        "ClusterError: Spark has ended: num_proc=3 tasks must run at the same time."
    )


def test_doctor_checks_the_executors(results: Mapping[str, Any]) -> None:
    said, error = results["doctor"]
    assert error == ""
    assert "Spark can run 2 task(s) at the same time now" in said
    assert re.search(r"^ok  executors on .*it reaches this notebook$", said, re.MULTILINE)
    assert said.endswith("everything is in place\n")


def test_variables_persist_and_ranks_lack_sparks_secret(results: Mapping[str, Any]) -> None:
    assert results["first"] == ["", [[0, 2, 0, None], [1, 2, 1, None]]]
    assert results["second"][0].endswith("[0-1] [0, 10]\n")
    assert results["second"][1] == ""


def test_options_for_local_ranks_are_refused(results: Mapping[str, Any]) -> None:
    ray, resized = (error for _, error in results["elsewhere"])
    assert ray.startswith("UsageError: the ranks run on Spark: `%hvd stop` ends them, with their variables, and then")
    assert resized.startswith(
        "ClusterError: Spark was asked for all ranks at once, and none can be added or taken away"
    )


def test_the_interrupt_key_ends_the_cell_and_variables_are_kept(results: Mapping[str, Any]) -> None:
    assert_interrupted(results)


def test_respawn_replaces_a_dead_rank_in_its_task(results: Mapping[str, Any]) -> None:
    assert_respawned(results)


def test_lost_executor_ends_all_ranks_and_restart_starts_others(results: Mapping[str, Any]) -> None:
    (_, lost), (_, nobody), (ready, _), after = results["executor_lost"]
    assert "died: it was lost with the process of Spark that held it" in lost
    assert nobody.startswith(
        ("ClusterError: all 2 ranks are dead", "ClusterError: rank 0 is not to be replaced: Spark has")
    )
    assert "`%hvd restart` starts fresh ranks" in nobody
    assert ready.endswith("ranks 0-1 ready\n")
    assert after[0].endswith("[0-1] [0, 1]\n"), "a slow machine may have said who waits for whom"
    assert after[1] == ""


def test_stop_leaves_nothing_and_frees_sparks_slots(results: Mapping[str, Any]) -> None:
    assert results["stopped"] == [["the ranks are stopped\n", ""], [2, 4]]
