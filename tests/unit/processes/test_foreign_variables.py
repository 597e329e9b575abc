"""What another launcher has left in the environment does not reach our ranks; what the user has set for MPI does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_kernel.cluster import launcher
from hvd_kernel.processes import open_mpi
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings.launchers import without_launchers


def test_what_stays() -> None:
    env = {"PATH": "p", "OMPI_COMM_WORLD_RANK": "1", "OMPI_MCA_btl": "tcp", "RANK": "1", "HOROVOD_AUTOTUNE": "1"}
    assert set(without_launchers(env)) == {"PATH", "OMPI_MCA_btl", "HOROVOD_AUTOTUNE"}


def test_chosen_network_reaches_the_ranks_of_a_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It counts as the user's choice, so none is made here: if it got lost on the way, ranks of two hosts would hang."""
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_include", "10.0.0.0/8")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("PRTE_MCA_prte_tmpdir_base", "/elsewhere")
    env = launcher.environment(tmp_path)
    assert open_mpi.chosen(env, ())
    assert open_mpi.between(ClusterSpec(2, hosts="10.1.2.3:1,10.1.2.4:1"), env) == {}
    assert env["OMPI_MCA_btl_tcp_if_include"] == "10.0.0.0/8"
    assert env["PRTE_MCA_prte_tmpdir_base"] == str(tmp_path), "what is ours wins"
    assert "OMPI_COMM_WORLD_RANK" not in env
