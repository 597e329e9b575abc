"""Scripts written for Horovod, unchanged, under each launcher, in an environment that has opted in: the same bits on every rank."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import same
from hvdtest.hvdrun import NIGHTLY, good, ran
from hvdtest.launch import free_port
from hvdtest.scripts import MPIRUN
from hvdtest.slurm import Slurm, why_not
from hvdtest.venvs import output_of, site_packages, venv_with_ours

from hvd_kernel import compat
from hvd_kernel.launch.cli import horovodrun

pytestmark = pytest.mark.mp
SCRIPTS = Path(__file__).with_name("horovod_scripts")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment where `hvdrun --install-horovod` was called."""
    python = venv_with_ours(tmp_path_factory.mktemp("opted") / "venv")
    horovodrun.install_import([site_packages(python)])
    return python


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def by_hvdrun(python: Path, np: int) -> list[str]:
    return [str(python), "-m", "hvd_kernel.launch", "-np", str(np), str(python)]


def by_horovodrun(python: Path, np: int) -> list[str]:
    command = output_of(python, "-m", "hvd_kernel.launch", "--install-horovodrun")
    return [command, "-np", str(np), str(python)]


def by_mpirun(python: Path, np: int) -> list[str]:
    return [*MPIRUN, "-np", str(np), str(python)]


def by_torchrun(python: Path, np: int) -> list[str]:
    torchrun = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", str(np)]
    return [*torchrun, "--master-port", str(free_port())]


def by_srun(python: Path, np: int) -> list[str]:
    return ["srun", "-N1", f"-n{np}", str(python)]


HERE = [by_hvdrun, by_horovodrun, by_mpirun, by_torchrun]
WITH_SLURM = pytest.param(by_srun, marks=pytest.mark.skipif(bool(why_not()), reason=why_not() or "none"))
EACH_LAUNCHER = pytest.mark.parametrize("launcher", [*HERE, WITH_SLURM])


@pytest.fixture
def variables(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the variables that lead srun to its Slurm; the other launchers need none."""
    by_slurm = request.node.callspec.params["launcher"] is by_srun
    return request.getfixturevalue("slurm").variables if by_slurm else {}


def saved(command: list[str], np: int, folder: Path, *words: str, **env: str) -> list[dict[str, Any]]:
    """Return what each rank has saved, in rank order."""
    import torch

    good(ran([*command, *words, "--checkpoints", str(folder)], folder, **env))
    names = [f"{rank}-of-{np}.pt" for rank in range(np)]
    assert sorted(path.name for path in folder.glob("*.pt")) == names
    return [torch.load(folder / name, weights_only=True) for name in names]


def equal(got: Any, want: Any, what: str) -> None:
    import torch

    if isinstance(want, dict):
        assert list(got) == list(want), what
        for name, value in want.items():
            equal(got[name], value, f"{what} {name}")
    elif isinstance(want, torch.Tensor):
        same(got, want, what)
    else:
        assert got == want, what


def ends(script: str) -> dict[str, Any]:
    """Return what every rank of two must save, computed in this process."""
    import torch

    threads = torch.get_num_threads()
    sys.path.insert(0, str(SCRIPTS))
    compat.install()
    torch.set_num_threads(1)
    try:
        return importlib.import_module("averaging").EXPECTED[script]()
    finally:
        torch.set_num_threads(threads)
        compat.uninstall()
        sys.path.remove(str(SCRIPTS))
        for name in ("averaging", "mnist", "torchvision"):
            sys.modules.pop(name, None)


@NIGHTLY
@EACH_LAUNCHER
@pytest.mark.parametrize("script", ["mnist.py", "synthetic_benchmark.py", "elastic.py"])
def test_training(python: Path, launcher: Any, script: str, variables: dict[str, str], tmp_path: Path) -> None:
    want = ends(script)
    ranks = saved(launcher(python, 2), 2, tmp_path, str(SCRIPTS / script), **variables)
    for rank, got in enumerate(ranks):
        equal(got, want, f"rank {rank}")


@NIGHTLY
@EACH_LAUNCHER
def test_adasum(python: Path, launcher: Any, variables: dict[str, str], tmp_path: Path) -> None:
    import torch

    ranks = saved(launcher(python, 2), 2, tmp_path, str(SCRIPTS / "adasum.py"), **variables)
    want = {
        "apart": torch.tensor([1.0, 2.0]),  # of what is at right angles the sum
        "alike": torch.tensor([3.0, -4.0]),  # of what is equal one of them
        # a = (1, 1), b = (1, 0): (1 - ab / 2aa) a + (1 - ab / 2bb) b, with ab = 1, aa = 2, bb = 1
        "together": torch.tensor([0.75 + 0.5, 0.75]),
        "model": {"weight": torch.tensor([[2.0 - 2 * 0.5, 2.0 - 2 * 0.5 * 2]])},
    }
    for rank, got in enumerate(ranks):
        equal(got, want, f"rank {rank}")


def in_process_sets(np: int, rank: int) -> dict[str, Any]:
    import torch

    mine = list(range(rank % 2, np, 2))
    values = [float(each + 1) for each in mine]
    want = {
        "place": (mine.index(rank), len(mine)),
        "sum": torch.tensor([sum(values)]),
        "gathered": torch.tensor(values),
        "everybody": torch.tensor([np * (np + 1) / 2]),
        "model": {"weight": torch.tensor([[1.0 - 0.25 * sum(values) / len(values)]])},
    }
    return want | ({"late": torch.tensor([float(np)])} if rank > 0 else {})


@NIGHTLY
@EACH_LAUNCHER
@pytest.mark.parametrize("np", [3, 4])
def test_process_sets(python: Path, launcher: Any, np: int, variables: dict[str, str], tmp_path: Path) -> None:
    words = [str(SCRIPTS / "process_sets.py"), "--ranks", str(np)]
    ranks = saved(launcher(python, np), np, tmp_path, *words, HOROVOD_DYNAMIC_PROCESS_SETS="1", **variables)
    for rank, got in enumerate(ranks):
        equal(got, in_process_sets(np, rank), f"rank {rank}")


def test_an_import_under_plain_mpirun(python: Path, tmp_path: Path) -> None:
    """No launcher informs these ranks of hvd_kernel: only the environment does."""
    code = """
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)
open(f"{hvd.rank()}-of-{hvd.size()}", "w").write(str(total.tolist()))
"""
    good(ran([*by_mpirun(python, 2), "-c", code], tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"0-of-2": "[3.0]", "1-of-2": "[3.0]"}


@NIGHTLY
def test_plain_python_is_one_rank(python: Path, tmp_path: Path) -> None:
    (alone,) = saved([str(python)], 1, tmp_path, str(SCRIPTS / "mnist.py"))
    assert list(alone["model"]) == ["conv.weight", "conv.bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


@NIGHTLY
def test_a_suite_of_tests_under_pytest(python: Path, tmp_path: Path) -> None:
    """Its assertions are rewritten by a finder of pytest's, its conftest imports horovod too."""
    shutil.copy(SCRIPTS / "suite.py", tmp_path / "test_training.py")
    (tmp_path / "conftest.py").write_text("import horovod.torch as hvd\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = ran([str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"], tmp_path, PYTHONPATH="")
    assert "3 passed" in good(done)


@NIGHTLY
def test_the_scripts_need_the_opt_in(tmp_path: Path) -> None:
    python = venv_with_ours(tmp_path / "venv")
    done = ran([str(python), str(SCRIPTS / "adasum.py")], tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'horovod'\n")
