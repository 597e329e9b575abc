"""``%%hvdrun --on spark`` on a real Spark with two executors of their own: ranks in a barrier stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hvdtest.engine_cells import CELLS
from hvdtest.spark_driver import outcomes

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = (
    CELLS
    + """
def ours():
    # The processes of ranks and of their agents.
    below = psutil.Process().children(recursive=True)
    return living(below, lambda each: any(word.startswith("hvd_kernel.") for word in each.cmdline()))

def without_session():
    return cell("%%hvdrun --on spark -np 2", "rank")

def doctor():
    return cell("%hvd doctor --on spark")

def too_many():
    return cell("%%hvdrun --on spark -np 3", "rank")

def first():
    code = "import os\\nx = rank * 10\\n(hvd.rank(), size, local_rank, os.environ.get('PYTHON_WORKER_FACTORY_SECRET'))"
    return [cell("%%hvdrun --on spark -np 2 -o found", code)[1], list(shell.user_ns["found"])]

def second():
    return cell("%%hvdrun", "hvd.allgather_object(x)")

def elsewhere():
    return [cell("%%hvdrun --on ray -np 2", "1"), cell("%hvd resize 3")]

def interrupted():
    def press(said):
        until(lambda: "here" in said.getvalue())
        signal.raise_signal(signal.SIGINT)

    waits = "import time\\nif rank == 0:\\n    print('here', flush=True)\\n    hvd.barrier()\\ntime.sleep(1000)"
    return [cell("%%hvdrun", waits, press), cell("%%hvdrun", "hvd.allgather_object(x)")]

def died():
    return [
        cell("%%hvdrun", "import os\\nos._exit(3) if rank == 1 else hvd.barrier()"),
        cell("%hvd respawn"),
        cell("%%hvdrun", "hvd.allgather_object(globals().get('x'))"),
    ]

def executor_lost():
    def kill(said):
        until(lambda: "here" in said.getvalue())
        above = psutil.Process(shell.user_ns["agents"][0]).parents()
        next(each for each in above if each.name() == "java").kill()

    cell("%%hvdrun -o agents", "import os, time\\nos.getppid()")
    waits = "if rank == 0:\\n    print('here', flush=True)\\n    time.sleep(1000)\\nhvd.barrier()"
    lost = [cell("%%hvdrun", waits, kill), cell("%hvd respawn")]
    until(lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 3, 200)  # the driver is one
    return [*lost, cell("%hvd restart"), cell("%%hvdrun", "hvd.allgather_object(rank)")]

def stopped():
    said = cell("%hvd stop")
    until(lambda: not ours())
    return [said, spark.sparkContext.parallelize([1, 2], 2).map(lambda x: 2 * x).collect()]

tell(without_session)
check = dict(spark_scheduler_barrier_maxConcurrentTasksCheck_maxFailures="1")
spark = session("local-cluster[2,1,1024]", **check)
tell(doctor, too_many, first, second, elsewhere, interrupted, died, executor_lost, stopped)
spark.stop()
"""
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return outcomes(SCRIPT, tmp_path_factory.mktemp("notebook"))


def test_what_is_missing_is_said(told: Mapping[str, Any]) -> None:
    assert told["without_session"][1] == (
        "UsageError: Could not find an active SparkContext, are you running in a PySpark session?"
    )
    assert told["too_many"][1].startswith("ClusterError: Spark has ended: num_proc=3 tasks must run at the same time.")


def test_doctor_looks_at_the_executors(told: Mapping[str, Any]) -> None:
    said, error = told["doctor"]
    assert error == ""
    assert "Spark can run 2 task(s) at the same time now" in said
    assert re.search(r"^ok  executors on .*it reaches this notebook$", said, re.MULTILINE)
    assert said.endswith("everything is in place\n")


def test_variables_persist_and_ranks_lack_sparks_secret(told: Mapping[str, Any]) -> None:
    assert told["first"] == ["", [[0, 2, 0, None], [1, 2, 1, None]]]
    assert told["second"][0].endswith("[0-1] [0, 10]\n")
    assert told["second"][1] == ""


def test_what_cannot_be_as_on_this_machine_is_refused(told: Mapping[str, Any]) -> None:
    ray, resized = (error for _, error in told["elsewhere"])
    assert ray.startswith("UsageError: the ranks run on Spark: `%hvd stop` ends them, with their variables, and then")
    assert resized.startswith(
        "ClusterError: Spark was asked for all ranks at once, and none can be added or taken away"
    )


def test_the_interrupt_key_ends_the_cell_and_variables_are_kept(told: Mapping[str, Any]) -> None:
    (_, error), after = told["interrupted"]
    assert error == "KeyboardInterrupt: ranks 0-1 interrupted, variables are kept"
    assert after[0].endswith("[0-1] [0, 10]\n"), "a slow machine may have said who waits for whom"
    assert after[1] == ""


def test_respawn_replaces_a_dead_rank_in_its_task(told: Mapping[str, Any]) -> None:
    (_, error), (said, _), after = told["died"]
    assert re.match(
        r"RankDied: rank 1 \(process \d+ on \S+\) died: it exited with os\._exit\(3\) in a cell, line 2;", error
    )
    assert "rank 1 is fresh: its variables are missing" in said
    assert after[0].endswith("[0-1] [0, None]\n"), "a slow machine may have said who waits for whom"
    assert after[1] == ""


def test_lost_executor_ends_all_ranks_and_restart_starts_others(told: Mapping[str, Any]) -> None:
    (_, lost), (_, nobody), (ready, _), after = told["executor_lost"]
    assert "died: it was lost with the process of Spark that held it" in lost
    assert nobody.startswith(
        ("ClusterError: all 2 ranks are dead", "ClusterError: rank 0 is not to be replaced: Spark has")
    )
    assert "`%hvd restart` starts fresh ranks" in nobody
    assert ready.endswith("ranks 0-1 ready\n")
    assert after[0].endswith("[0-1] [0, 1]\n"), "a slow machine may have said who waits for whom"
    assert after[1] == ""


def test_stop_leaves_nothing_and_frees_sparks_slots(told: Mapping[str, Any]) -> None:
    assert told["stopped"] == [["the ranks are stopped\n", ""], [2, 4]]
