"""Packages that a shard needs besides go into a copy of .venv: .ci/extras, on a checkout of the test's own; environments' links."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from hvdtest.environments import _link_beside, ours
from hvdtest.launch import TESTS, clean_environment
from hvdtest.venvs import site_packages

ROOT = TESTS.parent


def wheel(folder: Path, name: str, version: str, *more: str) -> Path:
    """Return a package of one module with its version; more: of its metadata."""
    info = f"{name}-{version}.dist-info"
    made = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(f"{name}.py", f"version = {version!r}\n")
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *more]
        file.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return made


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def made(checkout: Path, env: dict[str, str]) -> str:
    command = ["bash", ".ci/extras", "tracking"]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
def test_the_venv_is_the_same_before_and_after(tmp_path: Path) -> None:
    wheels, checkout = tmp_path / "wheels", tmp_path / "checkout"
    wheels.mkdir()
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "extras", checkout / ".ci")
    (checkout / ".ci" / "constraints.txt").write_text("jinja2==3.0\n")
    wheel(wheels, "shared", "2")
    wheel(wheels, "jinja2", "2.0")
    extra = 'extra == "tracking"'
    wants = [f"Requires-Dist: shared>=2; {extra}", f"Requires-Dist: jinja2<3; {extra}"]
    first = [wheel(wheels, "shared", "1"), wheel(wheels, "hvd_kernel", "1", "Provides-Extra: tracking", *wants)]
    offline = clean_environment(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PIP_NO_CACHE_DIR="1")
    venv.EnvBuilder(symlinks=True, with_pip=True).create(checkout / ".venv")
    python = checkout / ".venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *first], env=offline, check=True, timeout=200)
    before = files_of(checkout / ".venv")

    assert made(checkout, offline) == "hvd_kernel: installing [tracking] into build/extras, a copy of .venv\n"
    assert made(checkout, offline) == "", "it is there"
    after = files_of(checkout / ".venv")
    assert sorted(before) == sorted(after)
    assert [name for name, content in before.items() if after[name] != content] == []
    copy = checkout / "build" / "extras" / "bin" / "python"
    modules = ("shared", "jinja2")
    assert [(site_packages(copy) / f"{name}.py").read_text() for name in modules] == [
        "version = '2'\n",
        "version = '2.0'\n",
    ], "the newer one, and the one that the constraints do not allow others"
    assert str(checkout / ".venv") not in (copy.parent / "pip").read_text(), "its commands are its own"


def test_copy_uses_the_environments_of_the_venv() -> None:
    here = sysconfig.get_path("purelib", vars={"base": str(ROOT / "build" / "extras")})
    assert ours(here) == Path(sysconfig.get_path("purelib", vars={"base": str(ROOT / ".venv")}))
    assert ours("/usr/lib/python3/site-packages") == Path("/usr/lib/python3/site-packages")


def test_programs_and_libraries_are_found_in_a_checkouts_venv(tmp_path: Path) -> None:
    downloaded, own = tmp_path / "downloaded", tmp_path / "own"
    for path in ("bin/python", "bin/mpiexec", "lib/libmpi.so", "lib/python3.11/site.py", "share/openmpi/help.txt"):
        for root in (downloaded, own) if "python" in path else (downloaded,):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"{root.name}'s")
    _link_beside(downloaded, own)
    found = {str(path.relative_to(own)): path.read_text() for path in own.rglob("*") if path.is_file()}
    assert found["bin/python"] == found["lib/python3.11/site.py"] == "own's"
    assert found["bin/mpiexec"] == found["lib/libmpi.so"] == "downloaded's"
    assert (own / "share" / "openmpi" / "help.txt").read_text() == "downloaded's"
