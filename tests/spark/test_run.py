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
from hvdtest.spark_driver import outcomes, started

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

FUNCTIONS = """
import io, os, signal, time
import hvd_kernel.spark
from hvd_kernel.spark.task import get_available_devices

def place(offset, factor=1):
    import numpy as np
    import hvd_kernel.numpy as hvd
    hvd.init()
    print("here is", hvd.rank())
    total = hvd.allreduce(np.array([hvd.rank() + offset]), op=hvd.Sum)
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), factor * int(total[0])]

class Bad(Exception):
    pass

def fails():
    import hvd_kernel.numpy as hvd
    hvd.init()
    if hvd.rank() == 1:
        raise Bad("shard", 1)
    hvd.barrier()
"""
LOCAL = (
    FUNCTIONS
    + """
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

tell(results, default_size, output, stamped, environment, cause, no_slots, after_that, jobs, no_devices, no_rank, no_context)
"""
)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return outcomes(LOCAL, tmp_path_factory.mktemp("local"))


def test_results_come_in_rank_order(local: Mapping[str, Any]) -> None:
    assert local["results"] == [[0, 2, 0, 2, 6], [1, 2, 1, 2, 6]]
    assert local["after_that"] == [[0, 2, 0, 2, 3], [1, 2, 1, 2, 3]]


def test_the_number_of_ranks_is_the_default_parallelism(local: Mapping[str, Any]) -> None:
    assert local["default_size"] == 2


def test_output_comes_to_the_driver_with_ranks(local: Mapping[str, Any]) -> None:
    assert local["output"] == ["[0]<stdout>:here is 0", "[1]<stdout>:here is 1"]
    assert local["stamped"]


def test_ranks_have_the_executors_environment_and_what_is_given(local: Mapping[str, Any]) -> None:
    assert local["environment"] == [[None, "2", ["HVD_SECRET_KEY"]]]


def test_what_a_rank_raises_is_the_cause(local: Mapping[str, Any]) -> None:
    told = local["cause"]
    assert (told["raised"], told["cause"], told["args"]) == ("RankFailed", "Bad", ["shard", "1"])
    assert told["text"].startswith("rank 1 of 2 raised Bad: ('shard', 1)\n")


def test_too_few_slots_are_named_after_the_time_to_start(local: Mapping[str, Any]) -> None:
    told = local["no_slots"]
    assert told["raised"] == "ClusterError"
    assert told["text"].startswith(
        "Timed out waiting for Spark to start the ranks: 0 of 3 are up after 3 s. Spark can run 2 "
    )


def test_each_run_is_a_job_of_a_group_of_its_own(local: Mapping[str, Any]) -> None:
    assert local["jobs"] == [1, 1]


def test_without_gpus_there_are_no_devices(local: Mapping[str, Any]) -> None:
    assert local["no_devices"] == [[]]


def test_what_cannot_be_is_refused(local: Mapping[str, Any]) -> None:
    assert local["no_rank"]["text"] == "num_proc=0: a job has 1 rank or more, e.g. num_proc=4."
    assert local["no_context"]["text"] == "Could not find an active SparkContext, are you running in a PySpark session?"


CLUSTER = (
    FUNCTIONS
    + """
import stat
from pathlib import Path
script = Path("gpus.sh").resolve()
script.write_text('#!/bin/sh\\necho {\\\\"name\\\\": \\\\"gpu\\\\", \\\\"addresses\\\\": [\\\\"0\\\\", \\\\"1\\\\"]}\\n')
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

tell(results, devices, executor_lost, after_that)
"""
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return outcomes(CLUSTER, tmp_path_factory.mktemp("cluster"))


def test_executors_of_one_host_share_memory(cluster: Mapping[str, Any]) -> None:
    assert cluster["results"] == [[0, 2, 0, 2, 3], [1, 2, 1, 2, 3]]


def test_devices_are_those_that_spark_has_given_the_task(cluster: Mapping[str, Any]) -> None:
    assert cluster["devices"] == [["0"], ["0"]]


def test_lost_executor_is_sparks_error_and_the_next_run_works(cluster: Mapping[str, Any]) -> None:
    told = cluster["executor_lost"]
    assert (told["raised"], told["cause"]) == ("RankDied", "Py4JJavaError")
    assert told["text"] == "rank 1 of 2 was lost with the process that held it before its function returned."
    assert cluster["after_that"] == [[0, 2, 0, 2, 3], [1, 2, 1, 2, 3]]


WAITING = (
    FUNCTIONS
    + """
import subprocess
from pathlib import Path
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
"""
)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_driver(number: signal.Signals, mark: str, tmp_path: Path) -> None:
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
