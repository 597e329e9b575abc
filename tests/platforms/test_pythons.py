"""Other versions of Python: the package works under each that pyproject.toml's classifiers name."""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

import pytest
from hvdtest.launch import TESTS, clean_environment
from hvdtest.pythons import installed, python_of

pytestmark = [pytest.mark.mp, pytest.mark.timeout(900)]

ROOT = TESTS.parent
OTHERS = installed()
NEWEST = OTHERS[-1]  # in the default tier; each of them takes half a minute of compilation
NEEDS_TORCH = re.compile(r"import (hvd_kernel\.)?torch")
LAUNCH = ("-m", "hvd_kernel.launch", "-np", "2")
FOLDERS = ("settings", "launch", "magics", "display", "diagnosis", "processes")
SCRIPT = """
import enum, sys
import numpy as np
import hvd_kernel.numpy as hvd

class Color(enum.Enum):
    RED = 1

hvd.init()
total = hvd.allreduce(np.arange(3.0) + hvd.rank(), op=hvd.Sum).tolist()
same = hvd.broadcast_object(Color.RED, 0) is Color.RED
print(total, same, hvd.allgather_object(hvd.rank()), "%d.%d" % sys.version_info[:2], sys.flags.optimize)
"""
JAX = """
import jax, sys
import hvd_kernel.jax as hvd

hvd.init()
whole = jax.numpy.arange(3.0) + hvd.rank()
inside = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, name="inside"))(whole)
print(hvd.allreduce(whole, op=hvd.Sum).tolist(), inside.tolist(), "%d.%d" % sys.version_info[:2])
"""
CELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in (
    "%load_ext hvd_kernel",
    "%%hvdrun -np 2\\nimport sys\\ntotal = hvd.allreduce(np.ones(2), op=hvd.Sum)\\n"
    "print(total.tolist(), hvd.size(), '%d.%d' % sys.version_info[:2])",
    "%hvd stop",
):
    shell.run_cell(cell.replace("%%hvdrun -np 2\\n", "%%hvdrun -np 2\\nimport numpy as np\\n")).raise_error()
"""


def output(python: Path, *words: str | Path, folder: Path, status: int = 0) -> str:
    done = subprocess.run(
        [python, "-P", *words], cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=() if version == NEWEST else pytest.mark.nightly) for version in OTHERS]
)
def test_a_script_and_a_cell_run_on_two_ranks(version: str, tmp_path: Path) -> None:
    python = python_of(version)
    for flags, optimize in ((), 0), (("-OO",), 2):
        lines = sorted(output(python, *LAUNCH, python, "-P", *flags, "-c", SCRIPT, folder=tmp_path).splitlines())
        expected = f"[1.0, 3.0, 5.0] True [0, 1] {version} {optimize}"
        assert lines == [f"[{rank}]<stdout>:{expected}" for rank in range(2)]
    assert f"[2.0, 2.0] 2 {version}" in output(python, "-c", CELL, folder=tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("version", OTHERS)
def test_jax_reduces_on_two_ranks(version: str, tmp_path: Path) -> None:
    python = python_of(version)
    lines = sorted(output(python, *LAUNCH, python, "-P", "-c", JAX, folder=tmp_path).splitlines())
    assert lines == [f"[{rank}]<stdout>:[1.0, 3.0, 5.0] [1.0, 3.0, 5.0] {version}" for rank in range(2)]


@pytest.mark.nightly
@pytest.mark.parametrize("version", OTHERS)
def test_unit_tests_pass(version: str) -> None:
    """The tests that need no torch, of which there is no wheel for every version."""
    folders = [TESTS / "unit" / folder for folder in FOLDERS]
    of_torch = [
        path for folder in folders for path in folder.rglob("test_*.py") if NEEDS_TORCH.search(path.read_text())
    ]
    with tempfile.TemporaryDirectory() as folder:  # tmp_path of an xdist worker is too long for names of sockets
        words = ("-m", "pytest", "-q", "-m", "not nightly", "-p", "no:cacheprovider", "--basetemp", f"{folder}/tests")
        output(python_of(version), *words, *(f"--ignore={path}" for path in of_torch), *folders, folder=ROOT)


def test_classifiers_name_the_versions_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [match[1] for each in project["classifiers"] if (match := re.search(r"Python :: (3\.\d+)$", each))]
    assert project["requires-python"] == f">={named[0]}"
    assert named == ["3.11", "3.12", "3.13"]
