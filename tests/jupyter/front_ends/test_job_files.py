"""Platforms' files in a notebook: the table of a file, and a cell that runs with its settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.kernel import Kernel

FILE = """
version: 1
kind: experiment
framework: horovod
environment:
  resources:
    cpu: {requests: 1, limits: 1}
  replicas:
    n_workers: 1
    default_worker:
      resources:
        memory: {requests: 256, limits: 1024}
run: {cmd: python train.py}
"""
GREEDY = """%%hvdrun
import os
held = []
while rank == 1:
    held.append(b"x" * (8 << 20))
"""


@pytest.mark.cluster(0)
def test_cell_runs_with_the_settings_of_a_platforms_file(kernel: Kernel, tmp_path: Path) -> None:
    file = tmp_path / "polyaxonfile.yml"
    file.write_text(FILE)
    assert kernel.run(f"%hvd job plan {file}").text() == (
        "rank  where     cpus  memory          gpus  command\n"
        "0     master 0  1     -               -     python train.py\n"
        "1     worker 0  -     256 MiB..1 GiB  -     python train.py\n"
    )
    shown = kernel.run(
        f"%%hvdrun --job {file}\nimport os\nlen(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], size",
        timeout=120,
    ).shown
    cores = len(__import__("os").sched_getaffinity(0))
    assert shown == [f"[0] (1, '1', 2)\n[1] ({cores}, '1', 2)"]
    died = kernel.run(GREEDY, allow_error=True, timeout=120)
    assert "RankDied: rank 1" in died.error
    assert "killed for memory: 1" in died.error
    assert "GiB of its limit of 1 GiB" in died.error
    both = kernel.run(f"%%hvdrun --job {file} -np 2\n1", allow_error=True)
    assert both.error.startswith("UsageError: --job says how many ranks there are, and where")
    file.write_text(FILE.replace("n_workers: 1", "n_workers: many"))
    wrong = kernel.run(f"%hvd job plan {file}", allow_error=True)
    assert wrong.error == (
        f"JobError: {file}:9:16: environment.replicas.n_workers: must be a whole number, not text."
    ), "nothing but the sentence"


@pytest.mark.nightly
@pytest.mark.cluster(0)
def test_cell_runs_with_the_settings_of_an_mpirun_command(kernel: Kernel) -> None:
    line = "mpirun -np 3 -bind-to none -map-by slot -x 'WORD=a b' -mca pml ob1 -mca btl ^openib python train.py"
    cell = kernel.run(f"%%hvdrun -- {line}\nimport os\nrank, size, os.environ['WORD']", timeout=120)
    assert cell.shown == ["[0] (0, 3, 'a b')\n[1] (1, 3, 'a b')\n[2] (2, 3, 'a b')"]
    assert [told.partition(" is ignored: ")[0] for told in cell.text("stderr").splitlines()[:4]] == [
        "python train.py",
        "-bind-to none",
        "-mca pml ob1",
        "-mca btl '^openib'",
    ]
    assert kernel.run("%%hvdrun\nsize").shown == ["[0-2] 3"], "the ranks stay"
    wrong = kernel.run("%%hvdrun -- mpirun -np four\n1", allow_error=True)
    assert wrong.error == "JobError: the command line: -np four: 'four' must be a whole number, from 1 to 100000."
