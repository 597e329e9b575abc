"""The wheel: its contents, and that it works in a new environment without a framework and JupyterLab."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]
PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
REQUIRED = {
    "hvd_kernel/__init__.py",
    "hvd_kernel/py.typed",
    "hvd_kernel/_native.pyi",
    "hvd_kernel/magics/commands/hvdrun.py",
    "hvd_kernel/widgets/dashboard.css",
    "hvd_kernel/widgets/static/dashboard.js",
    "hvd_kernel/widgets/static/uPlot.LICENSE",
    "hvd_kernel/widgets/static/uPlot.min.css",
    "hvd_kernel/kernel/__main__.py",
    "hvd_kernel/processes/agent.py",
    "hvd_kernel/processes/rank_agent.py",
}
BARE = """
import importlib.util, json, subprocess, sys
there = [name for name in ("torch", "tensorflow", "jax", "jupyterlab") if importlib.util.find_spec(name)]
assert there == [], f"the environment is not bare, or the plain dependencies grew: {there}"

import numpy as np
import hvd_kernel
import hvd_kernel.numpy as hvd
from hvd_kernel import _native
assert hvd_kernel.__file__.startswith(sys.prefix), hvd_kernel.__file__
hvd.init()
x = np.arange(5, dtype=np.float32)
assert (hvd.allreduce(x, name="x", op=hvd.Sum) == x).all()
hvd.shutdown()
assert _native.__version__ == hvd_kernel.__version__

command = [sys.executable, "-m", "jupyter_client.kernelspecapp", "list", "--json"]
specs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["kernelspecs"]
assert specs["hvd_kernel"]["spec"]["display_name"] == "Python 3 (hvd)", specs
"""


def run(*words: str | Path, cwd: Path = ROOT) -> None:
    """With all that it starts: a compiler must not outlive a test that was cut short."""
    with subprocess.Popen(
        words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said = process.communicate()[0]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-8000:]


@pytest.fixture(
    scope="module", params=["of_the_editable_build", pytest.param("from_nothing", marks=pytest.mark.nightly)]
)
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the editable installation, for its devices; or compile anew for all devices."""
    folder = tmp_path_factory.mktemp("wheel")
    editable = request.param == "of_the_editable_build"
    build = ["-Cbuild-dir=build/editable", "-Ccmake.define.HVD_MPI=ON"] if editable else [f"-Cbuild-dir={folder}/build"]
    run(sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", *build, "-w", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


def test_wheel_holds_only_our_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name for name in REQUIRED if name not in names} == set()
    assert [name for name in names if name.startswith("hvd_kernel/_native.") and name.endswith(".so")] != []
    assert "hvd_kernel/libhvd_core.so" in names
    assert [name for name in names if name.endswith(".data/data/share/jupyter/kernels/hvd_kernel/kernel.json")] != []
    tops = {name.split("/")[0] for name in names}
    assert [name for name in names if name.startswith("hvd_kernel/widgets/js")] == [], "what static/ is built from"
    assert {top for top in tops if top != "hvd_kernel" and not top.endswith((".dist-info", ".data"))} == set()
    assert sorted(names) == sorted(set(names)), "a file is there twice"


def test_wheel_reduces_in_a_bare_environment(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "bare" / "bin" / "python"
    run(sys._base_executable, "-m", "venv", tmp_path / "bare")  # not this environment's child
    run(python, *PIP, "install", "--no-compile", "-c", ROOT / ".ci" / "constraints.txt", wheel)
    run(python, "-c", BARE, cwd=tmp_path)
