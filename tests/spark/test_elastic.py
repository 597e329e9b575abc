"""``hvd_kernel.spark.run_elastic`` on two real executors: a rank that fails, and an executor that is lost, in the middle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hvdtest.spark_driver import outcomes

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = """
import os, time
from functools import partial
from pathlib import Path
import hvd_kernel.spark
spark = session("local-cluster[2,1,1024]", spark_executor_memory="512m")

def train(folder, how):
    import numpy as np
    import psutil
    import hvd_kernel.numpy as hvd
    hvd.init()
    state = hvd.elastic.ObjectState(step=0, total=0)

    @hvd.elastic.run
    def steps(state):
        while state.step < 6:
            first = Path(folder, how)
            if state.step == 2 and hvd.rank() == 1 and not first.exists():
                first.touch()
                if how == "rank":
                    os._exit(3)
                next(each for each in psutil.Process().parents() if each.name() == "java").kill()
                time.sleep(100)
            state.total += int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
            state.step += 1
            state.commit()

    steps(state)
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), state.step]

def rank_fails():
    return hvd_kernel.spark.run_elastic(train, (os.getcwd(), "rank"), num_proc=2, min_num_proc=1)

def executor_lost():
    return hvd_kernel.spark.run_elastic(train, (os.getcwd(), "executor"), num_proc=2)

def contradiction():
    return hvd_kernel.spark.run_elastic(train, num_proc=2, min_np=3)

def two_names():
    return hvd_kernel.spark.run_elastic(train, num_proc=2, min_np=1, min_num_proc=2)

tell(rank_fails, executor_lost, contradiction, two_names)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return outcomes(SCRIPT, tmp_path_factory.mktemp("elastic"))


def test_a_rank_that_fails_is_started_again_and_the_others_go_on(told: Mapping[str, Any]) -> None:
    assert [each[4] for each in told["rank_fails"]] == [6] * len(told["rank_fails"])
    assert told["rank_fails"][0][:2] in ([0, 1], [0, 2])


def test_the_task_of_a_lost_executor_comes_back_on_another_one(told: Mapping[str, Any]) -> None:
    assert told["executor_lost"] == [[0, 2, 0, 2, 6], [1, 2, 1, 2, 6]]


def test_sizes_that_contradict_each_other_are_refused(told: Mapping[str, Any]) -> None:
    assert told["contradiction"]["text"] == "min_np=3 is above np=2, but is the least of ranks."
    assert told["two_names"]["text"] == "min_num_proc=2 and min_np=1 are the same thing: keep min_num_proc."
