"""A cluster of Ray: each node has its own address on the loopback interface."""

import inspect
import itertools
import os
import sys
import time

import ray
from ray._private import services

# Addresses that no other driver's nodes have: what is at a fixed port of theirs meets nothing.
NETWORK = f"127.{os.getpid() // 254 % 254 + 1}.{os.getpid() % 254 + 1}"
ADDRESSES, PORTS = itertools.count(2), itertools.count(20001)


def node(cpus, gpus=0, **more):
    address = f"{NETWORK}.{next(ADDRESSES)}"
    memory = 80 << 20
    ports = {"runtime_env_agent_port": 20000}
    return (
        {"num_cpus": cpus, "num_gpus": gpus, "node_ip_address": address, "object_store_memory": memory} | ports | more
    )


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

    made = Cluster(initialize_head=True, head_node_args=first | {"include_dashboard": False})
    return made, [made.add_node(**each) for each in others]


def client_of(made, within=300):
    # Where a server for one client listens, once it does: a client itself waits 30 s at most. Ray's own, which forks such
    # a server for each client from a process with gRPC's threads, now and then has one that dies at its birth.
    import atexit
    import socket
    import subprocess

    served = (made.head_node.node_ip_address, next(PORTS))
    command = [sys.executable, "-m", "ray.util.client.server", "--mode", "specific-server", "--address", made.address]
    command += ["--host", served[0], "--port", str(served[1])]
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )  # it may outlive the driver
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
