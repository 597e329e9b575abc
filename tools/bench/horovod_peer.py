"""Horovod as a peer of tools/bench/frameworks.py, in a separate Python in which it is installed.

    HOROVOD_PYTHON=/path/to/python python tools/bench/frameworks.py 5 torch "2.15" Horovod

That Python has TensorFlow 2.15, Horovod (pip install --no-build-isolation horovod==0.28.1, HOROVOD_WITH_GLOO=1), and links to this
checkout's package, as tests/hvdtest/environments.py makes them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from hvdtest.environments import quiet
from hvdtest.launch import RankPool, horovod_variables

PYTHON = os.environ.get("HOROVOD_PYTHON", "")

# What horovodrun does for ranks that meet by gloo.
MEETING = """
import sys
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer
server = RendezvousServer(verbose=0)
print(server.start(), flush=True)
server.init(get_host_assignments(parse_hosts("localhost:2"), 2))
sys.stdin.read()
"""


@contextmanager
def ranks() -> Iterator[RankPool]:
    """Start two ranks of Horovod."""
    with subprocess.Popen(
        [PYTHON, "-P", "-c", MEETING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())

        def variables(rank: int, size: int, ours: int) -> dict[str, str]:
            return horovod_variables(rank, size, ours) | {
                "HOROVOD_LOCAL_RANK": str(rank),
                "HOROVOD_LOCAL_SIZE": str(size),
                "HOROVOD_CROSS_RANK": "0",
                "HOROVOD_CROSS_SIZE": "1",
                "HOROVOD_HOSTNAME": "localhost",
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                "HOROVOD_GLOO_IFACE": "lo",
            }

        try:
            with RankPool(2, variables=variables, python=PYTHON, **quiet()) as pool:
                yield pool
        finally:
            server.kill()
