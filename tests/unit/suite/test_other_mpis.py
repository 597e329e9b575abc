"""Other MPIs as the benchmark's peers: which are found, and the environment of their ranks. The programs are fakes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from hvd_kernel.bench.other_mpis import OtherMpi, installed, run_ranks
from hvd_kernel.errors import ClusterError

MPICH = "echo HYDRA build details:; echo '    Version:        5.0.2'"
INTEL = "echo 'Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929'"


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.fixture(autouse=True)
def with_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    monkeypatch.delenv("I_MPI_ROOT", raising=False)


def test_each_version_is_found_once_and_other_families_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = program(tmp_path / "own" / "bin", "mpiexec", MPICH)
    first = program(tmp_path / "a" / "bin", "mpiexec.hydra", MPICH)
    program(tmp_path / "a" / "bin", "mpiexec", MPICH)
    program(tmp_path / "b" / "bin", "mpiexec", "echo 'mpiexec (Open MPI) 5.0.11'")
    intel = program(tmp_path / "intel" / "bin", "mpiexec.hydra", INTEL)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setenv("I_MPI_ROOT", str(tmp_path / "intel"))
    path = ":".join(str(each) for each in (own.parent, first.parent, tmp_path / "b" / "bin", tmp_path / "nothing"))
    assert installed(path) == [OtherMpi("MPICH", "5.0.2", first), OtherMpi("Intel MPI", "2021.19.0", intel)]


def test_without_mpi4py_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert installed(str(program(tmp_path, "mpiexec", MPICH).parent)) == []


def test_ranks_of_an_mpi_get_its_library_and_no_foreign_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    said = tmp_path / "said"
    script = f'echo "$MPI4PY_MPIABI $LD_LIBRARY_PATH ${{OMPI_COMM_WORLD_RANK-none}} $MASTER_PORT $1 $2 $7" >{said}'
    mpi = OtherMpi("MPICH", "5.0.2", program(tmp_path / "bin", "mpiexec", script))
    run_ranks(mpi, 2, ["PLAN"], {"MASTER_PORT": "7"}, 60.0)
    assert said.read_text() == f"mpich {tmp_path}/lib:{tmp_path}/lib/release none 7 -n 2 PLAN\n"


def test_failed_and_hung_ranks_are_reported(tmp_path: Path) -> None:
    fails = OtherMpi("MPICH", "5.0.2", program(tmp_path, "mpiexec", "echo no fabric; exit 3"))
    with pytest.raises(ClusterError, match=r"mpiexec ended with status 3:\nno fabric"):
        run_ranks(fails, 2, [], {}, 60.0)
    stays = OtherMpi("MPICH", "5.0.2", program(tmp_path, "mpiexec.hydra", "exec sleep 1000"))
    with pytest.raises(ClusterError, match="the ranks did not end in 0 s"):
        run_ranks(stays, 2, [], {}, 0.1)
