"""``hvd_kernel.spark.run`` on a real Spark: threads as executors (local[2]), and two executors of their own."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hvdtest.hvdrun import gone, processes_with
from hvdtest.programs import text_of
from hvdtest.spark_driver import outcomes, started

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
LOCAL = text_of("failing_function", "torch_group", PROGRAMS / "run_functions.py", PROGRAMS / "run_local.py")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return outcomes(LOCAL, tmp_path_factory.mktemp("local"))


def test_results_are_returned_in_rank_order(local: Mapping[str, Any]) -> None:
    assert local["results"] == [[0, 2, 0, 2, 6], [1, 2, 1, 2, 6]]
    assert local["after_that"] == [[0, 2, 0, 2, 3], [1, 2, 1, 2, 3]]


def test_the_number_of_ranks_is_the_default_parallelism(local: Mapping[str, Any]) -> None:
    assert local["default_size"] == 2


def test_output_reaches_the_driver_with_rank_labels(local: Mapping[str, Any]) -> None:
    assert local["output"] == ["[0]<stdout>:here is 0", "[1]<stdout>:here is 1"]
    assert local["stamped"]


def test_ranks_have_the_executors_and_the_given_environment(local: Mapping[str, Any]) -> None:
    assert local["environment"] == [[None, "2", ["HVD_SECRET_KEY"]]]


def test_groups_of_torch_need_no_setup(local: Mapping[str, Any]) -> None:
    kind = "HvdProcessGroup"
    assert local["groups"] == [[kind, 3.0, f"{rank}", "2", f"{rank}", "2", "127.0.0.1", True] for rank in range(2)]


def test_exception_of_a_rank_is_the_cause(local: Mapping[str, Any]) -> None:
    results = local["cause"]
    assert (results["raised"], results["cause"], results["args"]) == ("RankFailed", "Bad", ["shard", "1"])
    assert results["text"].startswith("rank 1 of 2 raised Bad: ('shard', 1)\n")


def test_too_few_slots_are_named_after_the_time_to_start(local: Mapping[str, Any]) -> None:
    results = local["no_slots"]
    assert results["raised"] == "ClusterError"
    assert results["text"].startswith(
        "Timed out waiting for Spark to start the ranks: 0 of 3 are up after 3 s. Spark can run 2 "
    )


def test_each_run_is_a_job_in_its_own_group(local: Mapping[str, Any]) -> None:
    assert local["jobs"] == [1, 1]


def test_without_gpus_there_are_no_devices(local: Mapping[str, Any]) -> None:
    assert local["no_devices"] == [[]]


def test_unsupported_arguments_are_refused(local: Mapping[str, Any]) -> None:
    assert local["no_rank"]["text"] == "num_proc=0: a job has 1 rank or more, e.g. num_proc=4."
    assert local["no_context"]["text"] == "Could not find an active SparkContext, are you running in a PySpark session?"


CLUSTER = text_of(PROGRAMS / "run_functions.py", PROGRAMS / "run_cluster.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return outcomes(CLUSTER, tmp_path_factory.mktemp("cluster"))


def test_executors_of_one_host_share_memory(cluster: Mapping[str, Any]) -> None:
    assert cluster["results"] == [[0, 2, 0, 2, 3], [1, 2, 1, 2, 3]]


def test_devices_are_those_that_spark_assigned_to_the_task(cluster: Mapping[str, Any]) -> None:
    assert cluster["devices"] == [["0"], ["0"]]


def test_lost_executor_is_sparks_error_and_the_next_run_works(cluster: Mapping[str, Any]) -> None:
    results = cluster["executor_lost"]
    assert (results["raised"], results["cause"]) == ("RankDied", "Py4JJavaError")
    assert results["text"] == "rank 1 of 2 was lost with the process that held it before its function returned."
    assert cluster["after_that"] == [[0, 2, 0, 2, 3], [1, 2, 1, 2, 3]]


WAITING = text_of(PROGRAMS / "run_functions.py", PROGRAMS / "run_waiting.py")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_driver(number: signal.Signals, mark: str, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    driver = started(WAITING, str(ranks), cwd=tmp_path, env={mark: "1"})
    try:
        deadline = time.monotonic() + 500
        while len(list(ranks.iterdir())) < 2:
            assert driver.poll() is None
            assert time.monotonic() < deadline, "the ranks have not begun"
            time.sleep(0.1)
        driver.send_signal(number)
        out, _ = driver.communicate(timeout=60)
    except (AssertionError, subprocess.TimeoutExpired):
        driver.kill()
        raise
    assert ("interrupted" in out) is (number == signal.SIGINT)
    assert gone(mark, 60), processes_with(mark)
