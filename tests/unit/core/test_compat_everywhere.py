"""``import horovod`` in every Python of an environment, by a .pth file or by the wheel named horovod; undone without a trace."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.venvs import output_of, site_packages, venv_with_ours

import hvd_kernel
from hvd_kernel import compat
from hvd_kernel.compat import shim
from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.cli import horovodrun
from hvd_kernel.launch.cli.main import main

VERSION = "import horovod; print(horovod.__version__)"
NOT_THERE = "ModuleNotFoundError: No module named 'horovod'"
WHEEL = "horovod-0.28.1+hvd-py3-none-any.whl"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that has not opted in; a test that does opts out again."""
    return venv_with_ours(tmp_path_factory.mktemp("plain") / "venv")


@pytest.fixture
def opted(plain: Path) -> Iterator[Path]:
    folder = site_packages(plain)
    assert horovodrun.install_import([folder]) == folder / shim.PTH_FOR_ALL
    yield plain
    assert horovodrun.uninstall_import([folder]) == folder / shim.PTH_FOR_ALL


@pytest.fixture
def real(tmp_path: Path) -> Path:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("__version__ = 'real'\n")
    return tmp_path


# The .pth file.


def test_opted_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    python = venv_with_ours(tmp_path / "venv")
    folder = site_packages(python)
    before = sorted(folder.iterdir())
    monkeypatch.setattr(shim, "folders", lambda: [folder])
    assert main(["--install-horovod"]) == 0
    assert capsys.readouterr().out == f"{folder / shim.PTH_FOR_ALL}\n"
    assert main(["--install-horovod"]) == 0, "again"
    assert output_of(python, "-c", VERSION) == "0.28.1"
    assert capsys.readouterr().out == f"{folder / shim.PTH_FOR_ALL}\n"
    assert main(["--uninstall-horovod"]) == 0
    assert capsys.readouterr().out == f"{folder / shim.PTH_FOR_ALL}\n"
    assert sorted(folder.iterdir()) == before
    assert output_of(python, "-c", VERSION, status=1).endswith(NOT_THERE)
    assert main(["--uninstall-horovod"]) == 0
    assert "not installed here: there is nothing to do" in capsys.readouterr().err


def test_start_imports_no_further_modules(plain: Path) -> None:
    code = "import sys; print(sorted(sys.modules), 'Later' in [getattr(f, '__name__', '') for f in sys.meta_path])"
    without = output_of(plain, "-c", code)
    horovodrun.install_import([site_packages(plain)])
    with_it = output_of(plain, "-c", code)
    horovodrun.uninstall_import([site_packages(plain)])
    assert without.endswith(" False")
    assert with_it == without.replace(" False", " True")


@pytest.mark.parametrize(
    "words",
    [
        ("-c", VERSION),
        pytest.param(("-I", "-c", VERSION), marks=pytest.mark.nightly),
        pytest.param(("-c", "import horovod.common.util, horovod; print(horovod.__version__)"), marks=pytest.mark.nightly),
        pytest.param(("-c", "from horovod import __version__ as v; print(v)"), marks=pytest.mark.nightly),
        pytest.param(("-c", f"import importlib.util as u; assert u.find_spec('horovod'); {VERSION}"), marks=pytest.mark.nightly),
        pytest.param(("-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {VERSION!r}])"), marks=pytest.mark.nightly),
    ],
)  # fmt: skip
def test_every_python_of_the_environment_has_it(opted: Path, words: tuple[str, ...]) -> None:
    assert output_of(opted, *words) == "0.28.1"


@pytest.mark.nightly
def test_a_module_of_horovods_runs_by_its_name(opted: Path) -> None:
    assert output_of(opted, "-m", "horovod.runner.launch", "--version") == hvd_kernel.__version__


def test_folder_named_horovod_hides_no_module(opted: Path, tmp_path: Path) -> None:
    """Python treats a project's folder horovod/ without __init__.py as a module, and its finders are first."""
    (tmp_path / "horovod").mkdir()
    for code in (
        "import horovod.common.util as util, horovod; print(horovod.__version__, util.__name__)",
        "from horovod.common import util; import horovod; print(horovod.__version__, util.__name__)",
    ):
        assert output_of(opted, "-c", code, cwd=tmp_path) == "0.28.1 hvd_kernel.compat.tree.util"


@pytest.mark.parametrize(
    ("told", "with_real", "version"),
    [
        ({}, True, "real"),
        pytest.param({"HVD_COMPAT": "shadow"}, True, "0.28.1", marks=pytest.mark.nightly),
        pytest.param({"HVD_COMPAT": "shadow"}, False, "0.28.1", marks=pytest.mark.nightly),
        pytest.param({"HVD_COMPAT": "1"}, False, "0.28.1", marks=pytest.mark.nightly),
        pytest.param({"HVD_COMPAT": "0"}, True, "real", marks=pytest.mark.nightly),
    ],
)
def test_real_horovod_installed_later_is_preferred(
    opted: Path, real: Path, told: dict[str, str], with_real: bool, version: str
) -> None:
    path = {"PYTHONPATH": str(real)} if with_real else {}
    assert output_of(opted, "-c", VERSION, **told, **path) == version


@pytest.mark.nightly
def test_names_missing_in_real_horovod_stay_missing(opted: Path, real: Path) -> None:
    code = "import horovod, sys\ntry: import horovod.torch\nexcept ImportError as e: print(e, [f for f in sys.meta_path if 'Horovod' in str(f)])"
    assert output_of(opted, "-c", code, PYTHONPATH=str(real)) == "No module named 'horovod.torch' []"


def test_switched_off_in_a_process(opted: Path) -> None:
    assert output_of(opted, "-c", VERSION, status=1, HVD_COMPAT="0").endswith(NOT_THERE)


def test_ranks_of_such_an_environment_are_ranks(opted: Path) -> None:
    """Both finders are installed; neither calls the other in a circle."""
    assert output_of(opted, "-c", VERSION, **compat.rank_environment({})) == "0.28.1"


@pytest.mark.parametrize("left", ["nothing", pytest.param("an empty folder", marks=pytest.mark.nightly)])
def test_python_without_hvd_kernel_starts_silently(tmp_path: Path, left: str) -> None:
    """pip does not know the file: it remains when hvd_kernel is uninstalled."""
    python = venv_with_ours(tmp_path / "venv")
    folder = site_packages(python)
    (folder / "ours.pth").unlink()
    horovodrun.install_import([folder])
    if left != "nothing":
        (folder / "hvd_kernel").mkdir()
    code = f"import sys; print('up', file=sys.stderr)\n{VERSION}"
    lines = output_of(python, "-c", code, status=1).splitlines()
    assert (lines[0], lines[-1]) == ("up", NOT_THERE)


@pytest.mark.nightly
def test_broken_hvd_kernel_names_what_is_missing(tmp_path: Path) -> None:
    python = venv_with_ours(tmp_path / "venv")
    folder = site_packages(python)
    (folder / "ours.pth").unlink()
    horovodrun.install_import([folder])
    (folder / "hvd_kernel").mkdir()
    (folder / "hvd_kernel" / "__init__.py").write_text("import msgspec_that_is_gone\n")
    assert output_of(python, "-c", VERSION, status=1).endswith("No module named 'msgspec_that_is_gone'")


def test_opt_in_is_refused_beside_real_horovod(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(real))
    folder = tmp_path / "site"
    folder.mkdir()
    try:
        for install in (lambda: horovodrun.install_import([folder]), lambda: horovodrun.install(folder)):
            with pytest.raises(ConfigError, match="a real Horovod is installed here"):
                install()
    finally:
        compat.uninstall()
    assert list(folder.iterdir()) == []


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none/hvd_kernel_horovod\.pth cannot be written: No such file"):
        horovodrun.install_import([tmp_path / "none"])


def test_older_file_of_ours_is_rewritten(tmp_path: Path) -> None:
    (tmp_path / shim.PTH_FOR_ALL).write_text("import sys; sys.older = 1\n")
    horovodrun.install_import([tmp_path])
    assert [path.name for path in tmp_path.iterdir()] == [shim.PTH_FOR_ALL]
    assert (tmp_path / shim.PTH_FOR_ALL).read_text() == shim.pth_text()


# horovodrun.


def test_horovodrun_is_removed_on_opt_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert horovodrun.uninstall(tmp_path) is None
    path = horovodrun.install(tmp_path)
    path.write_text(path.read_text().replace(sys.executable, "/elsewhere/python"))
    assert horovodrun.install(tmp_path) == path
    assert path.read_text().splitlines()[0] == f"#!{sys.executable}", "of an environment that was moved"
    assert horovodrun.uninstall(tmp_path) == path
    assert list(tmp_path.iterdir()) == []


def test_foreign_horovodrun_is_kept(tmp_path: Path) -> None:
    (tmp_path / "horovodrun").write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="was not installed by hvdrun and is not removed"):
        horovodrun.uninstall(tmp_path)
    assert (tmp_path / "horovodrun").exists()


@pytest.mark.nightly
def test_pth_file_and_wheel_may_be_combined(opted: Path) -> None:
    """``import horovod`` then finds the opted-in package, which is not a real one."""
    path = output_of(opted, "-m", "hvd_kernel.launch", "--install-horovodrun")
    assert path == str(opted.parent / "horovodrun")
    assert output_of(path, "--version") == hvd_kernel.__version__
    assert output_of(opted, "-m", "hvd_kernel.launch", "--uninstall-horovodrun") == path


# The wheel.


def test_wheel_matches_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--build-horovod-shim", str(tmp_path / "new")]) == 0
    path = tmp_path / "new" / WHEEL
    assert capsys.readouterr().out == f"{path}\n"
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist()}
    info = "horovod-0.28.1+hvd.dist-info"
    rows = list(csv.reader(files[f"{info}/RECORD"].decode().splitlines()))
    assert [row[0] for row in rows] == list(files), "every file, once"
    assert rows.pop() == [f"{info}/RECORD", "", ""]
    for name, digest, size in rows:
        sha256 = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        assert (digest, size) == (f"sha256={sha256}", str(len(files[name])))
    assert {name for name in files if not name.startswith(info)} == {shim.PTH}
    first = path.read_bytes()
    assert shim.build(path.parent).read_bytes() == first, "the same bytes each time"


def test_distribution_is_named_horovod(tmp_path: Path) -> None:
    with zipfile.ZipFile(shim.build(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "site")
    (found,) = importlib.metadata.distributions(path=[str(tmp_path / "site")])
    ours = hvd_kernel.__version__
    assert (found.name, found.version) == ("horovod", "0.28.1+hvd")
    wanted = {
        "torch": "torch",
        "pytorch": "torch",
        "tensorflow": "tensorflow",
        "tensorflow-cpu": "tensorflow",
        "tensorflow-gpu": "tensorflow",
        "keras": "keras",
        "mxnet": "mxnet",
    }
    assert found.metadata.get_all("Provides-Extra") == list(wanted), "what a project may write behind horovod"
    assert found.requires == [
        f"hvd-kernel=={ours}",
        *(f'hvd-kernel[{own}]=={ours}; extra == "{extra}"' for extra, own in wanted.items()),
    ]
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert set(wanted.values()) <= set(project["optional-dependencies"]), "each is one that hvd-kernel has"
    (command,) = found.entry_points
    assert (command.group, command.name, command.load()) == ("console_scripts", "horovodrun", main)
    code = f"import site, sys; site.addsitedir({str(tmp_path / 'site')!r})\n{VERSION}"
    assert output_of(sys.executable, "-c", code) == "0.28.1"


def test_uncreatable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the wheel cannot be written to .*/file/x: Not a directory"):
        horovodrun.build_shim(str(tmp_path / "file" / "x"))


@pytest.mark.nightly
def test_pip_installs_checks_and_uninstalls_the_wheel(tmp_path: Path) -> None:
    python = venv_with_ours(tmp_path / "venv")
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    before = sorted(path for path in (tmp_path / "venv").rglob("*") if path.suffix != ".pyc")
    output_of(*pip, "install", "--no-index", f"{shim.build(tmp_path)}[torch]")
    assert output_of(*pip, "check") == "No broken requirements found."
    assert output_of(python, "-c", VERSION) == "0.28.1"
    assert output_of(python, "-c", "import importlib.metadata as m; print(m.version('horovod'))") == "0.28.1+hvd"
    assert output_of(python.parent / "horovodrun", "--version") == hvd_kernel.__version__
    for wanted in ("horovod", "horovod==0.28.1", "horovod[pytorch]>=0.27,<0.29", "horovod[pytorch,torch]"):
        assert "Would install" not in output_of(*pip, "install", "--no-index", "--dry-run", wanted)
    file = str(site_packages(python) / shim.PTH)
    hvdrun = (python, "-m", "hvd_kernel.launch")
    assert output_of(*hvdrun, "--install-horovod") == file, "it is there already"
    assert output_of(*hvdrun, "--install-horovodrun") == str(python.parent / "horovodrun")
    for flag in ("--uninstall-horovod", "--uninstall-horovodrun"):
        assert "-m pip uninstall horovod` takes away" in output_of(*hvdrun, flag, status=2)
    output_of(*pip, "uninstall", "--yes", "horovod")
    assert sorted(path for path in (tmp_path / "venv").rglob("*") if path.suffix != ".pyc") == before
    assert output_of(python, "-c", VERSION, status=1).endswith(NOT_THERE)


def test_our_own_environment_has_not_opted_in() -> None:
    assert importlib.util.find_spec("horovod") is None
    assert [
        folder / name for folder in shim.folders() for name in (shim.PTH_FOR_ALL, shim.PTH) if (folder / name).exists()
    ] == []
