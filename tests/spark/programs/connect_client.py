"""A client of Spark Connect that runs ranks."""

import os
from typing import TYPE_CHECKING

from pyspark import SparkContext
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from driver_cases import report_cases

session = SparkSession.builder.remote(f"sc://localhost:{os.environ['PORT']}").getOrCreate()
assert SparkContext._active_spark_context is None
import hvd_kernel.spark


def place(offset):
    import numpy as np

    import hvd_kernel.numpy as hvd

    hvd.init()
    total = hvd.allreduce(np.array([hvd.rank() + offset]), op=hvd.Sum)
    return [hvd.rank(), hvd.size(), hvd.local_size(), int(total[0]), "SPARK_CONNECT_AUTHENTICATE_TOKEN" in os.environ]


class Bad(Exception):
    pass


def fails():
    raise Bad("shard", 1)


def results():
    return hvd_kernel.spark.run(place, (1,), num_proc=2)


def cause():
    return hvd_kernel.spark.run(fails, num_proc=1)


def no_slots():
    return hvd_kernel.spark.run(place, (1,), num_proc=3, start_timeout=3)


def no_size():
    return hvd_kernel.spark.run(place, (1,))


report_cases(results, cause, no_slots, no_size)
