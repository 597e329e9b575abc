"""Ranks of Spark that wait while their driver ends."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import hvd_kernel.spark

if TYPE_CHECKING:
    from spark_session import session

spark = session("local-cluster[2,1,1024]", spark_executor_memory="512m")


def waits(folder):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(folder, os.environ["HOROVOD_RANK"]).touch()
    time.sleep(1000)


try:
    hvd_kernel.spark.run(waits, (sys.argv[1],), num_proc=2)
except KeyboardInterrupt:
    print("interrupted")
    sys.stdout.flush()
    spark.stop()
