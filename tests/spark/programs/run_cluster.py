"""``hvd_kernel.spark.run`` on a cluster with executors of its own."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import hvd_kernel.spark
from hvd_kernel.spark.task import get_available_devices

if TYPE_CHECKING:
    from driver_cases import report_cases
    from run_functions import place
    from spark_session import session

script = Path("gpus.sh").resolve()
script.write_text('#!/bin/sh\necho {\\"name\\": \\"gpu\\", \\"addresses\\": [\\"0\\", \\"1\\"]}\n')
script.chmod(0o755)
spark = session(
    "local-cluster[2,1,1024]",
    spark_executor_memory="512m",
    spark_worker_resource_gpu_amount="2",
    spark_worker_resource_gpu_discoveryScript=str(script),
    spark_executor_resource_gpu_amount="1",
    spark_task_resource_gpu_amount="1",
)


def ends_its_executor():
    import psutil

    import hvd_kernel.numpy as hvd

    hvd.init()
    if hvd.rank() == 1:
        next(each for each in psutil.Process().parents() if each.name() == "java").kill()
    time.sleep(100)


def results():
    return hvd_kernel.spark.run(place, (1,), num_proc=2)


def devices():
    return hvd_kernel.spark.run(get_available_devices, num_proc=2)


def executor_lost():
    return hvd_kernel.spark.run(ends_its_executor, num_proc=2)


def after_that():
    return hvd_kernel.spark.run(place, (1,), num_proc=2)


report_cases(results, devices, executor_lost, after_that)
