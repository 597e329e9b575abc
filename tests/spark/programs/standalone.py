"""A standalone cluster with workers that start and exit."""

import atexit
import os
import re
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

import hvd_kernel.spark

if TYPE_CHECKING:
    from driver_cases import report_cases
    from spark_session import session

home = Path(pyspark.__file__).parent
environment = os.environ | {"SPARK_HOME": str(home), "SPARK_NO_DAEMONIZE": "1"}


def daemon(name, *args):
    # Master and Worker print their addresses on stderr.
    log = Path(f"{name}.{time.monotonic_ns()}.log")
    command = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *args]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    atexit.register(process.kill)
    return process, log


def said(process, log, pattern):
    while (found := re.search(pattern, log.read_text())) is None:
        assert process.poll() is None, log.read_text()[-2000:]
        time.sleep(0.1)
    return found[1]


master, log = daemon("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
address = said(master, log, r"Starting Spark master at (spark://\S+)")


def worker():
    process, log = daemon(
        "worker.Worker",
        "--host",
        "127.0.0.1",
        "--cores",
        "1",
        "--memory",
        "800m",
        "--webui-port",
        "0",
        "--work-dir",
        f"work{time.monotonic_ns()}",
        address,
    )
    said(process, log, r"(Successfully registered) with master")
    return process


first = worker()
spark = session(
    address,
    spark_executor_memory="512m",
    spark_executor_cores="1",
    spark_cores_max="2",
    spark_deploy_maxExecutorRetries="-1",
)


def train(folder):
    import numpy as np

    import hvd_kernel.numpy as hvd

    hvd.init()
    state = hvd.elastic.ObjectState(step=0, total=0, phase=0, sizes=[])

    @hvd.elastic.run
    def steps(state):
        while state.phase < 3:
            seen = Path(folder, f"phase{state.phase}").exists()
            both = hvd.allreduce(np.array([1, seen]), op=hvd.Sum)
            state.total += int(both[0])
            state.step += 1
            state.sizes = state.sizes if state.sizes[-1:] == [hvd.size()] else [*state.sizes, hvd.size()]
            state.phase += int(both[1] == both[0])
            if hvd.rank() == 0:
                Path(folder, f"now{hvd.size()}.{state.phase}").touch()
            time.sleep(0.02)
            state.commit()

    steps(state)
    return [hvd.rank(), hvd.size(), state.step, state.total, state.sizes]


def workers_come_and_go():
    folder = Path("phases").absolute()
    folder.mkdir()
    results = []
    run = partial(hvd_kernel.spark.run_elastic, train, (str(folder),), num_proc=1, min_num_proc=1, max_num_proc=2)
    thread = threading.Thread(target=lambda: results.append(run()), daemon=True)
    thread.start()

    def until(size, phase):
        while not (folder / f"now{size}.{phase}").exists():
            assert thread.is_alive()
            time.sleep(0.05)

    until(1, 0)
    (folder / "phase0").touch()
    until(1, 1)
    _second = worker()
    until(2, 1)
    (folder / "phase1").touch()
    until(2, 2)
    first.kill()  # its executor ends with it
    until(1, 2)
    _third = worker()
    (folder / "now2.2").unlink()
    until(2, 2)
    (folder / "phase2").touch()
    thread.join()
    [[step, total, sizes], *others] = [row[2:] for row in results[0]]
    return [[row[:2] for row in results[0]], sizes, all(other == [step, total, sizes] for other in others)]


report_cases(workers_come_and_go)
spark.stop()
