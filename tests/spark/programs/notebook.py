"""Cells whose ranks are tasks of Spark."""

from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from driver_cases import report_cases
    from notebook_cells import cell, died, interrupted, living, second, shell, until
    from spark_session import session


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
    code = "import os\nx = rank * 10\n(hvd.rank(), size, local_rank, os.environ.get('PYTHON_WORKER_FACTORY_SECRET'))"
    return [cell("%%hvdrun --on spark -np 2 -o found", code)[1], list(shell.user_ns["found"])]


def elsewhere():
    return [cell("%%hvdrun --on ray -np 2", "1"), cell("%hvd resize 3")]


def executor_lost():
    def kill(said):
        until(lambda: "here" in said.getvalue())
        above = psutil.Process(shell.user_ns["agents"][0]).parents()
        next(each for each in above if each.name() == "java").kill()

    cell("%%hvdrun -o agents", "import os, time\nos.getppid()")
    waits = "if rank == 0:\n    print('here', flush=True)\n    time.sleep(1000)\nhvd.barrier()"
    lost = [cell("%%hvdrun", waits, kill), cell("%hvd respawn")]
    until(lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 3, 200)  # the driver is one
    return [*lost, cell("%hvd restart"), cell("%%hvdrun", "hvd.allgather_object(rank)")]


def stopped():
    said = cell("%hvd stop")
    until(lambda: not ours())
    return [said, spark.sparkContext.parallelize([1, 2], 2).map(lambda x: 2 * x).collect()]


report_cases(without_session)
check = {"spark_scheduler_barrier_maxConcurrentTasksCheck_maxFailures": "1"}
spark = session("local-cluster[2,1,1024]", **check)
report_cases(doctor, too_many, first, second, elsewhere, interrupted, died, executor_lost, stopped)
spark.stop()
