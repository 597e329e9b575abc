"""The ranks find each other however they are started: mpirun, torchrun, Horovod's variables, torch's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.launch import RankPool, clean_environment, free_port, torch_variables

pytestmark = pytest.mark.mp

SCRIPT = """
import json, sys
import torch
import hvd_kernel.torch as hvd
from hvd_kernel import _session, topology
found = []
for round in range(2):
    hvd.init()
    x = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), name="x", op=hvd.Sum).item()
    found.append([hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), x])
    hvd.shutdown()
with open(sys.argv[1] + str(found[0][0]), "w") as file:
    json.dump(found, file)
"""
MPIRUN = [
    f"{sys.prefix}/bin/mpirun",
    "--allow-run-as-root",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "pml",
    "ob1",
    "--mca",
    "btl",
    "self,sm",
]


def launched(command: list[str], tmp_path: Path, np: int, **env: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [*command, str(script), str(tmp_path / "rank")],
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(np):
        one = [rank, np, rank, np, 0, 1, np * (np + 1) / 2]
        assert json.loads((tmp_path / f"rank{rank}").read_text()) == [one, one]


@pytest.mark.parametrize("np", [1, 3])
def test_mpirun(tmp_path: Path, np: int) -> None:
    launched([*MPIRUN, "-np", str(np), sys.executable, "-P"], tmp_path, np)


def test_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    launched([*torchrun, "--master-port", str(free_port())], tmp_path, 3)


def test_torchrun_wins_over_the_mpi_that_started_it(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    outer = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    launched([*torchrun, "--master-port", str(free_port())], tmp_path, 2, **outer)


def test_nothing(tmp_path: Path) -> None:
    launched([sys.executable, "-P"], tmp_path, 1)


def who() -> list[int]:
    import hvd_kernel.torch as hvd

    hvd.init()
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]


def test_torch_variables() -> None:
    with RankPool(2, variables=torch_variables) as pool:
        assert pool.run(who) == [[0, 2, 0, 2], [1, 2, 1, 2]]


def test_both_kinds_of_variables() -> None:
    def both(rank: int, size: int, port: int) -> dict[str, str]:
        horovod = {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size), "HOROVOD_LOCAL_RANK": str(rank)}
        return torch_variables(1 - rank, size, port) | horovod  # they contradict: Horovod's win

    with RankPool(2, variables=both) as pool:
        assert pool.run(who) == [[0, 2, 0, 2], [1, 2, 1, 2]]


def absent() -> str:
    import time

    import hvd_kernel.torch as hvd

    began = time.monotonic()
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.init()
    assert time.monotonic() - began < 20
    assert not hvd.is_initialized()
    return str(caught.value)


def test_a_rank_that_never_comes() -> None:
    def three(rank: int, _size: int, port: int) -> dict[str, str]:
        return {**torch_variables(rank, 3, port), "HVD_START_TIMEOUT": "2"}

    with RankPool(2, variables=three) as pool:
        for text in pool.run(absent):
            assert "2" in text, "the missing rank is named"


MPI_SCRIPT = """
from mpi4py import MPI
import torch, hvd_kernel.torch as hvd
world = MPI.COMM_WORLD
half = world.Split(world.rank % 2, -world.rank)
hvd.init(comm=half)
assert (hvd.rank(), hvd.size()) == (half.rank, half.size)
assert hvd.allreduce(torch.tensor([world.rank]), op=hvd.Sum).item() == (2 if world.rank % 2 == 0 else 1)
hvd.shutdown()
if world.rank != 1:
    hvd.init(comm=[0, 2])
    assert (hvd.rank(), hvd.size()) == (world.rank // 2, 2)
    assert hvd.allgather(torch.tensor([world.rank])).tolist() == [0, 2]
    hvd.shutdown()
world.Barrier()
"""


def test_communicators(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MPI_SCRIPT)
    command = [*MPIRUN, "-np", "3", sys.executable, "-P", str(script)]
    done = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
