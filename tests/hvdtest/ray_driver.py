"""Ray drivers for tests: a script in the environment `ray`, which makes a cluster of its own, and tells as Spark's do.

Each node has an address of its own, 127.0.0.2 and so on: what goes by addresses tells them apart.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvdtest.environments import environment
from hvdtest.launch import clean_environment
from hvdtest.spark_driver import TELL, told_by
from hvdtest.venvs import site_packages

from hvd_kernel.processes.lifetime import environment_of, kill

HEAD = (
    TELL
    + """
import itertools, os, threading, time
from pathlib import Path
import ray

ADDRESSES = itertools.count(2)

def node(cpus, gpus=0, **more):
    return dict(
        num_cpus=cpus, num_gpus=gpus, node_ip_address=f"127.0.0.{next(ADDRESSES)}", object_store_memory=80 << 20, **more
    )

def up(start):
    # Ray itself gives a raylet 30 s, which are too few beside a load of 40.
    for _ in range(5):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return start()

def cluster(first, *others):
    from ray.cluster_utils import Cluster
    made = up(lambda: Cluster(initialize_head=True, head_node_args=first | dict(include_dashboard=False)))
    nodes = [up(lambda: made.add_node(**each)) for each in others]
    return made, nodes

def connected(*nodes):
    made, others = cluster(*nodes)
    ray.init(address=made.address, log_to_driver=False)
    return made, others
"""
)


def _compiled(python: Path) -> Path:
    """The same, with the modules of Ray's own processes compiled: a raylet waits 30 s for them, and then gives up."""
    packages = site_packages(python)
    made = packages / "ray" / "compiled"
    if not made.exists():
        parts = [str(packages / name) for name in ("ray", "grpc", "google", "pydantic", "requests", "jsonschema")]
        subprocess.run([python, "-m", "compileall", "-q", *parts], stdout=subprocess.DEVNULL, check=False)
        made.touch()
    return python


@contextmanager
def driver(script: str, *args: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver at work. Nothing of its cluster is left at the end."""
    folder = tempfile.mkdtemp(prefix="hvd-ray-")  # short: the path of a socket has at most 107 bytes
    mark = f"HVDTEST_RAY_{Path(folder).name[-8:]}"
    python = _compiled(environment("ray"))
    # Ray makes its workers nice: beside other work on the machine they would wait for ever.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    env = clean_environment(RAY_TMPDIR=folder, PYTHONPATH="", **quiet)
    process = subprocess.Popen(
        [str(python), "-P", "-c", HEAD + script, *args],
        env=env | {mark: "1"},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for entry in Path("/proc").glob("[0-9]*"):
            if mark in environment_of(int(entry.name)):
                kill(int(entry.name), signal.SIGKILL)
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def outcomes(script: str, folder: Path, *args: str) -> Mapping[str, Any]:
    """What the cases have told."""
    with driver(script, *args, cwd=folder) as process:
        return told_by(process)
