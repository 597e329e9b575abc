"""Ray drivers for tests: a script in the environment `ray`, which makes a cluster of its own, and tells as Spark's do.

Each node has an address of its own on the loopback interface: what goes by addresses tells them apart.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hvdtest.environments import environment
from hvdtest.launch import clean_environment
from hvdtest.spark_driver import TELL, WITHIN_S, told_by

from hvd_kernel.processes.lifetime import environment_of, kill

HEAD = (
    TELL
    + """
import inspect, itertools, os, threading, time
from pathlib import Path
import ray
import ray._private.services as services

# Addresses that no other driver's nodes have: what is at a fixed port of theirs meets nothing.
NETWORK = f"127.{os.getpid() // 254 % 254 + 1}.{os.getpid() % 254 + 1}"
ADDRESSES, PORTS = itertools.count(2), itertools.count(20001)

def node(cpus, gpus=0, **more):
    address = f"{NETWORK}.{next(ADDRESSES)}"
    memory = 80 << 20
    ports = dict(runtime_env_agent_port=20000)
    return dict(num_cpus=cpus, num_gpus=gpus, node_ip_address=address, object_store_memory=memory) | ports | more

# A raylet begins two agents, which are Python processes, and aborts where one takes longer than 15 s to leave a file
# with its port. Ray has no setting for that, and beside a load of 10 they take 10 s. So the files are there before.
def start_raylet(*args, begin=services.start_raylet, **named):
    from ray._raylet import persist_port
    given = inspect.signature(begin).bind(*args, **named).arguments
    for name in ("metrics_agent", "metrics_export", "dashboard_agent_listen"):
        persist_port(given["session_dir"], given["node_id"], name + "_port", -1)  # without a dashboard there is none
    persist_port(given["session_dir"], given["node_id"], "runtime_env_agent_port", given["runtime_env_agent_port"])
    return begin(*args, **named)

services.start_raylet = start_raylet

def cluster(first, *others):
    from ray.cluster_utils import Cluster
    made = Cluster(initialize_head=True, head_node_args=first | dict(include_dashboard=False))
    return made, [made.add_node(**each) for each in others]

def client_of(made, within=300):
    # Where a server for one client listens, once it does: a client itself waits 30 s at most. Ray's own, which forks such
    # a server for each client from a process with gRPC's threads, now and then has one that dies at its birth.
    import atexit, socket, subprocess
    served = (made.head_node.node_ip_address, next(PORTS))
    command = [sys.executable, "-m", "ray.util.client.server", "--mode", "specific-server", "--address", made.address]
    command += ["--host", served[0], "--port", str(served[1])]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # it may outlive the driver
    atexit.register(server.kill)
    end = time.monotonic() + within
    while True:
        try:
            socket.create_connection(served).close()
            return "ray://{}:{}".format(*served)
        except ConnectionRefusedError:
            if time.monotonic() > end or server.poll() is not None:
                raise
            time.sleep(0.1)

def connected(*nodes):
    made, others = cluster(*nodes)
    ray.init(address=made.address, log_to_driver=False)
    return made, others
"""
)


@contextmanager
def variables() -> Iterator[dict[str, str]]:
    """Variables of a process that makes a cluster. Nothing that has them is left at the end."""
    folder = tempfile.mkdtemp(prefix="hvd-ray-")  # short: the path of a socket has at most 107 bytes
    mark = f"HVDTEST_RAY_{Path(folder).name[-8:]}"
    # Ray makes its workers nice: beside other work on the machine they would wait for ever. And it gives them 60 s to
    # begin.
    quiet = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_worker_register_timeout_seconds": "600",
    }
    try:
        yield {"RAY_TMPDIR": folder, mark: "1"} | quiet
    finally:
        for entry in Path("/proc").glob("[0-9]*"):
            if mark in environment_of(int(entry.name)):
                kill(int(entry.name), signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def driver(script: str, *args: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver at work."""
    with ExitStack() as last:
        own = last.enter_context(variables())
        process = subprocess.Popen(
            [str(environment("ray")), "-P", "-c", HEAD + script, *args],
            env=clean_environment(PYTHONPATH="", **own),
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
            last.close()
            process.communicate()


def outcomes(script: str, folder: Path, *args: str, seconds: float = WITHIN_S) -> Mapping[str, Any]:
    """What the cases have told."""
    with driver(script, *args, cwd=folder) as process:
        return told_by(process, seconds)
