"""The network of a notebook's ranks on several hosts: known by the hosts' names before MPI starts anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hvd_kernel.cluster import launcher
from hvd_kernel.cluster.launcher import mpi_arguments
from hvd_kernel.processes import open_mpi
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.open_mpi import between, is_far
from hvd_kernel.settings import network
from hvd_kernel.settings.lookup import without_launchers

HERE = {"lo": "127.0.0.1/8", "docker0": "172.17.0.1/16", "eth0": "10.0.0.1/24", "ib0": "10.1.0.1/16"}
KNOWN = {"near": "10.0.0.2", "fast": "10.1.9.2", "self": "10.0.0.1", "routed": "192.168.4.4", "docker": "172.17.0.1"}
ETH = {"btl_tcp_if_include": "10.0.0.0/24"}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(name: str) -> str:
        if name not in KNOWN:
            raise socket.gaierror(name)
        return KNOWN[name]

    monkeypatch.setattr(socket, "gethostbyname", address)
    monkeypatch.setattr(network, "networks", lambda: HERE)


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("", {}),
        ("localhost:2", {}),
        ("near:2", ETH),
        ("localhost:2, near", ETH),
        ("self:2,near:2", ETH),
        ("fast:2", {"btl_tcp_if_include": "10.1.0.0/16"}),
        ("near:1,fast:1", {}),  # no network of all three
        ("near:1,routed:1", {}),
        ("near:1,unknown:1", {}),
        ("docker:1", {}),  # an address of this host: no network of other hosts
    ],
)
def test_the_network_that_all_hosts_share(hosts: str, found: dict[str, str], tmp_path: Path) -> None:
    assert between(ClusterSpec(2, hosts=hosts), {"HOME": str(tmp_path)}) == found


def test_hosts_are_read_from_a_file_and_users_choice_wins(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\nlocalhost slots=2\n\nnear slots=2  # rack 4\n")
    spec, env = ClusterSpec(4, hostfile=str(file)), {"HOME": str(tmp_path)}
    assert is_far(spec)
    assert between(spec, env) == ETH
    assert between(spec, env | {"OMPI_MCA_btl_tcp_if_exclude": "lo"}) == {}
    chosen = ("--mca", "btl_tcp_if_include", "ib0")
    assert between(ClusterSpec(4, hostfile=str(file), mpi_args=chosen), env) == {}


def test_mpiexec_gets_the_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    far = " ".join(mpi_arguments(ClusterSpec(2, hosts="near:2"), tmp_path))
    assert "--mca btl_tcp_if_include 10.0.0.0/24" in far
    assert "btl_tcp_if_include" not in " ".join(mpi_arguments(ClusterSpec(2), tmp_path))


# What another launcher has left in the environment does not reach our ranks; what the user has set for MPI does.


def test_variables_of_the_user_are_kept() -> None:
    env = {"PATH": "p", "OMPI_COMM_WORLD_RANK": "1", "OMPI_MCA_btl": "tcp", "RANK": "1", "HOROVOD_AUTOTUNE": "1"}
    assert set(without_launchers(env)) == {"PATH", "OMPI_MCA_btl", "HOROVOD_AUTOTUNE"}


def test_chosen_network_reaches_the_ranks_of_a_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It counts as the user's choice, so none is made here: if it were lost, ranks of two hosts would hang."""
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "10.0.0.0/8")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("PRTE_MCA_prte_tmpdir_base", "/elsewhere")
    env = launcher.environment(tmp_path)
    assert open_mpi.chosen(env, ())
    assert open_mpi.between(ClusterSpec(2, hosts="10.1.2.3:1,10.1.2.4:1"), env) == {}
    assert env["OMPI_MCA_btl_tcp_if_include"] == "10.0.0.0/8"
    assert env["PRTE_MCA_prte_tmpdir_base"] == str(tmp_path), "what is ours wins"
    assert "OMPI_COMM_WORLD_RANK" not in env
