"""Elastic jobs on Spark."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import hvd_kernel.spark

if TYPE_CHECKING:
    from driver_cases import report_cases
    from spark_session import session

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
    return hvd_kernel.spark.run_elastic(train, (str(Path.cwd()), "rank"), num_proc=2, min_num_proc=1)


def executor_lost():
    return hvd_kernel.spark.run_elastic(train, (str(Path.cwd()), "executor"), num_proc=2)


def contradiction():
    return hvd_kernel.spark.run_elastic(train, num_proc=2, min_np=3)


def two_names():
    return hvd_kernel.spark.run_elastic(train, num_proc=2, min_np=1, min_num_proc=2)


report_cases(rank_fails, executor_lost, contradiction, two_names)
