"""A machine without name resolution, and hosts with IPv6 alone: everything starts (F9)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hvdtest.hosts import HostPool, Hosts, why_not
from hvdtest.hvdrun import EITHER, HVDRUN, NIGHTLY, SUM, good, lines_of, ran

pytestmark = [
    pytest.mark.mp,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "none"),
    pytest.mark.skipif(shutil.which("mount") is None, reason="the program mount is missing"),
]

# No interface but the loopback, an unknown name, no resolver.
_HIDE = "mount --bind /dev/null /etc/hosts && mount --bind /dev/null /etc/resolv.conf"
_SETUP = f'ip link set lo up && hostname nobody.invalid && {_HIDE} && exec "$@"'
NAMELESS = ["unshare", "--net", "--uts", "--mount", "--propagation", "private", "sh", "-c", _SETUP, "sh"]
CLUSTER = """
import socket
from hvd_kernel.cluster import Session
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvdtest.cluster import execute
try:
    socket.gethostbyname(socket.gethostname())
except OSError:
    print("no name")
session = Session.start(ClusterSpec(2))
try:
    outcome = execute(session, "import torch; hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum, name='x').item()")
    print(sorted(outcome.results().items()), outcome.failures)
finally:
    session.stop()
"""
SIX = ["fd77::1", "fd77::2"]


def nameless(*command: str) -> subprocess.CompletedProcess[str]:
    return ran([*NAMELESS, *command], seconds=150)


@EITHER
def test_f9_hvdrun_starts_without_name_resolution(how: str) -> None:
    text = good(nameless(*HVDRUN, how, "-np", "2", sys.executable, "-P", "-c", SUM))
    assert [lines_of(text, rank) for rank in range(2)] == [[f"{rank} 2 {rank} 2 1 3.0"] for rank in range(2)]


@NIGHTLY
def test_f9_cluster_starts_without_name_resolution() -> None:
    ran = nameless(sys.executable, "-P", "-c", CLUSTER)
    assert ran.stdout == "no name\n[(0, '3'), (1, '3')] {}\n", ran.stdout + ran.stderr


@pytest.fixture
def six() -> Iterator[Hosts]:
    """Two hosts that have no address of IPv4 but the loopback's."""
    with Hosts(2) as hosts:
        for host, address in enumerate(SIX):
            with hosts.inside(host):
                for change in (["flush", "dev", "eth0"], ["add", f"{address}/64", "dev", "eth0", "nodad"]):
                    subprocess.run(["ip", "-6" if "add" in change else "-4", "addr", *change], check=True)
        yield hosts


def summed() -> list[object]:
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    hvd.init()
    total = hvd.allreduce(torch.full((100_000,), hvd.rank() + 1.0), name="x", op=hvd.Sum)
    assert torch.equal(total, torch.full((100_000,), 3.0))
    return [hvd.cross_size(), session.engine().transport_to(1 - hvd.rank())]


@NIGHTLY
def test_f9_hosts_with_ipv6_alone_reach_each_other(six: Hosts) -> None:
    there = {"HOROVOD_CONTROLLER_ADDR": SIX[0]}
    with HostPool(six, [0, 1], lambda _: there, HVD_SECRET_KEY="0123456789abcdef0123456789abcdef") as pool:
        assert pool.run(summed) == [[2, "tcp"], [2, "tcp"]]
