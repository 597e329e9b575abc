"""tests/frameworks/parallel as its own ranks: hvdrun starts a pytest process per rank, and every one runs all of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import HVDRUN, lines_of
from hvdtest.launch import clean_environment

pytestmark = [pytest.mark.mp, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PYTEST = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
# Pytests that begin and end together must not tidy one folder for all: each would warn of what the other has removed.
TEMPROOT = "PYTEST_DEBUG_TEMPROOT"
AT_LEAST = 30  # tests
SUMMARY = re.compile(r"(\d+) passed in .*")  # nothing is skipped, deselected, expected to fail, or warned about


@pytest.mark.parametrize(
    ("np", "how"),
    [
        (2, "--gloo"),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in [(1, "--gloo"), (3, "--gloo"), (2, "--mpi")]),
    ],
)
def test_every_rank_runs_every_test(mark: str, np: int, how: str, tmp_path: Path) -> None:
    command = [*HVDRUN, "-np", str(np), how, *PYTEST, "-x", "--timeout", "60", "tests/frameworks/parallel"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=clean_environment(**{TEMPROOT: str(tmp_path)}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    counts = set()
    for rank in range(np):
        lines = lines_of(done.stdout, rank)
        found = SUMMARY.fullmatch(lines[-1])
        assert found is not None, "\n".join(lines) + done.stderr
        counts.add(int(found[1]))
    assert len(counts) == 1, counts
    assert min(counts) >= AT_LEAST


@pytest.mark.nightly
def test_rank_that_fails_a_test_ends_the_others(mark: str, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import torch, hvd_kernel.torch as hvd\n"
        "def test_apart():\n"
        "    hvd.init()\n"
        "    assert hvd.rank() != 1, 'rank 1 leaves'\n"
        "    hvd.allreduce(torch.ones(1))\n"
    )
    command = [*HVDRUN, "-np", "2", *PYTEST, "-x", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert any("rank 1 leaves" in line for line in lines_of(done.stdout, 1)), done.stdout
    assert "hvdrun: rank " in done.stderr.splitlines()[-1]
