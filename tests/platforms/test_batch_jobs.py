"""A written batch script in a real Slurm: steps one after another, on the nodes and in the environment of the job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.hvdrun import NIGHTLY
from hvdtest.slurm import Slurm, why_not

from hvd_kernel.jobs import Bounds, JobSpec, Replica, Resources, Variable, formats, writers

pytestmark = [pytest.mark.mp, NIGHTLY, pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")]

TRAP = 'it\'s $HOME `pwd` "x"'
SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np
from hvd_kernel.core import session as here, ops
here.init()
total = ops.allreduce(np.array([here.rank() + 1.0]), name="x", op=ops.Sum).item()
first = len(list(Path.cwd().glob("first.*")))
found = [here.size(), os.environ["SLURMD_NODENAME"], total, first, os.environ["TRAP"]]
Path(f"rank.{here.rank()}").write_text(repr(found))
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def alike(slots: int) -> tuple[Replica, ...]:
    resources = Resources(Bounds(slots, slots), Bounds(2**27, 2**27))
    return tuple(Replica(index=index, slots=slots, resources=resources) for index in range(2))


MIXED = (alike(1)[0], Replica(index=1, slots=2, resources=Resources(Bounds(4, 4), Bounds(2**28, 2**28))))


def written(folder: Path, replicas: tuple[Replica, ...], np: int, first: str) -> Path:
    (folder / "script.py").write_text(SCRIPT)
    spec = JobSpec(
        "riseml",
        replicas,
        steps=(first, f"{sys.executable} -P script.py"),
        np=np,
        environment=(Variable("TRAP", TRAP), Variable("FROM_OUTSIDE")),
        name="it's a job",
        workdir=str(folder),
    )
    text = writers.write(spec, "slurm")
    assert formats.read(text, "x").replicas == replicas
    script = folder / "job.sh"
    script.write_text(text)
    return script


def submitted(slurm: Slurm, script: Path, *flags: str) -> tuple[int, str]:
    output = script.parent / "output"
    command = ["sbatch", "--wait", f"--output={output}", *flags, str(script)]
    env = {**os.environ, **slurm.variables, "FROM_OUTSIDE": "taken over"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr + (output.read_text() if output.exists() else "")


@pytest.mark.parametrize(
    ("replicas", "np", "nodes"),
    [
        (alike(2), 0, ["n1", "n1", "n2", "n2"]),
        (alike(2), 3, ["n1", "n1", "n2"]),
        (MIXED, 0, ["n1", "n2", "n2"]),
    ],
    ids=["alike", "fewer", "mixed"],
)
def test_slurm_runs_the_written_script(
    slurm: Slurm, tmp_path: Path, replicas: tuple[Replica, ...], np: int, nodes: list[str]
) -> None:
    script = written(tmp_path, replicas, np, "echo $FROM_OUTSIDE > first.$SLURM_PROCID")
    status, output = submitted(slurm, script)
    assert status == 0, output
    size = len(nodes)
    for rank, node in enumerate(nodes):
        assert (tmp_path / f"first.{rank}").read_text() == "taken over\n"
        found = (tmp_path / f"rank.{rank}").read_text()
        assert found == repr([size, node, size * (size + 1) / 2, size, TRAP])


def test_the_first_step_that_fails_ends_the_job_with_its_status(slurm: Slurm, tmp_path: Path) -> None:
    status, output = submitted(slurm, written(tmp_path, alike(1), 0, "exit $((SLURM_PROCID * 7))"))
    assert status == 7, output
    assert not list(tmp_path.glob("rank.*"))


def test_slurm_accepts_the_header(slurm: Slurm, tmp_path: Path) -> None:
    status, output = submitted(slurm, written(tmp_path, MIXED, 0, "true"), "--test-only")
    assert (status, "to start at" in output) == (0, True), output
