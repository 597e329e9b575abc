"""The benchmarks: every available contender takes part with right values, and no process is left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hvdtest.hvdrun import marked, ran
from hvdtest.launch import clean_environment
from hvdtest.offenders import ROOT

from hvd_kernel.bench.__main__ import run_ranks
from hvd_kernel.errors import ClusterError

pytestmark = pytest.mark.mp


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "hvd_kernel.bench", *arguments]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with marked(monkeypatch):
        yield


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.nightly)])
def test_all_contenders_are_measured_and_right(dtype: str) -> None:
    sizes = [1024, 300_000]
    done = bench(
        "-np",
        "2",
        "--sizes",
        ",".join(map(str, sizes)),
        "--dtype",
        dtype,
        "--rounds",
        "2",
        "--shared",
        "--limit",
        "--json",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert (answer["np"], answer["dtype"], answer["op"]) == (2, dtype, "sum")
    contenders = {"hvd_kernel", "hvd_kernel, shared", "torch gloo", "memory copy"}
    if dtype == "float32":
        contenders.add("mpi4py Open MPI")
    found = {(one["contender"], one["nbytes"]): one for one in answer["results"]}
    assert set(found) == {(contender, size) for contender in contenders for size in sizes}
    for one in found.values():
        assert one["right"], one
        assert one["busbw"] == pytest.approx(one["nbytes"] / one["seconds"])  # 2 (n - 1) / n is 1 for two ranks
    assert all(found["hvd_kernel", size]["ratio"] == 1 for size in sizes)
    assert answer["text"].startswith(f"allreduce of {dtype}, sum, 2 ranks, 2 rounds\n")
    assert answer["svg"].count("<polyline ") == len(contenders)


@pytest.mark.nightly
@pytest.mark.parametrize("op", ["min", "product"])
def test_other_operators_print_a_table(op: str) -> None:
    done = bench("-np", "3", "--sizes", "4K", "--op", op, "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"allreduce of float32, {op}, 3 ranks, 1 rounds\n")
    assert "!" not in done.stdout


def test_failed_rank_is_reported_and_no_process_is_left() -> None:
    with pytest.raises(ClusterError, match="JSONDecodeError"):
        run_ranks(2, ["this is not a plan"], 60)


@pytest.mark.nightly
def test_gpu_table_program_measures_every_row() -> None:
    """Run tools/gpu/side_by_side.py at tiny sizes on the CPU."""
    done = ran([sys.executable, "-P", str(ROOT / "tools" / "gpu" / "side_by_side.py"), "--tiny"], seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MISSED" not in done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith(("| GPT-2", "| ResNet"))]
    assert len({(row[0], row[3]) for row in rows}) == 12
    assert all(float(row[4]) > 0 for row in rows)
