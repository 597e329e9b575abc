"""``hvd_kernel.spark.run`` on local tasks."""

import io
import os
from typing import TYPE_CHECKING

import hvd_kernel.spark
from hvd_kernel.spark.task import get_available_devices

if TYPE_CHECKING:
    from driver_cases import report_cases
    from failing_function import fails
    from run_functions import place
    from spark_session import session
    from torch_group import torch_group

spark = session("local[2]")


def results():
    return hvd_kernel.spark.run(place, (1,), {"factor": 2}, num_proc=2)


def default_size():
    return len(hvd_kernel.spark.run(lambda: None))


def output():
    out = io.StringIO()
    hvd_kernel.spark.run(place, (1,), num_proc=2, stdout=out)
    return sorted(out.getvalue().splitlines())


def stamped():
    out = io.StringIO()
    hvd_kernel.spark.run(place, (1,), num_proc=1, stdout=out, prefix_output_with_timestamp=True)
    return out.getvalue().partition("[0]<stdout>:")[0] != ""


def environment():
    os.environ["DRIVERS_OWN"] = "1"

    def look():
        hidden = [name for name in os.environ if "SECRET" in name or "TOKEN" in name]
        return [os.environ.get("DRIVERS_OWN"), os.environ.get("GIVEN"), sorted(hidden)]

    return hvd_kernel.spark.run(look, num_proc=1, env={"GIVEN": "2"})


def groups():
    return hvd_kernel.spark.run(torch_group, num_proc=2)


def cause():
    return hvd_kernel.spark.run(fails, num_proc=2)


def no_slots():
    return hvd_kernel.spark.run(place, (1,), num_proc=3, start_timeout=3)


def after_that():
    return hvd_kernel.spark.run(place, (1,), num_proc=2)


def jobs():
    tracker = spark.sparkContext.statusTracker()
    return [len(tracker.getJobIdsForGroup(f"horovod.spark.run.{n}")) for n in (0, 1)]


def no_devices():
    return hvd_kernel.spark.run(get_available_devices, num_proc=1)


def no_rank():
    return hvd_kernel.spark.run(place, num_proc=0)


def no_context():
    spark.stop()
    return hvd_kernel.spark.run(place)


report_cases(
    results,
    default_size,
    output,
    stamped,
    environment,
    groups,
    cause,
    no_slots,
    after_that,
    jobs,
    no_devices,
    no_rank,
    no_context,
)
