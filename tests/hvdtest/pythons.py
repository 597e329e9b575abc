"""Environments of other versions of Python than pytest's: our package, with an extension that is built for them.

``python_of("3.13")`` is the Python of tests/frameworks/environments/python.txt under that version. The extension is built
against the installed core, in build/python-3.13: half a minute on two cores, once, and what has changed after that. Its
files are compiled together (unity build), which takes half the time, as each of them includes pybind11.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

from hvdtest.environments import LOCKS, OURS, locked, made, ours
from hvdtest.launch import TESTS
from hvdtest.venvs import site_packages

ROOT = TESTS.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LOCK = LOCKS / "python.txt"
_EXTENSION = "_native.*.so"
_BUILD_S = 900


@functools.cache
def interpreter(version: str) -> Path | None:
    """Return the Python of this version on the PATH or of pyenv; None if there is none. None is started: each test run checks."""
    listed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    found = [Path(path) for path in (shutil.which(f"python{version}"),) if path]
    module = Path("lib", f"python{version}", "venv", "__init__.py")  # pyenv's shims have none
    return next((path for path in [*found, *listed] if (path.resolve().parents[1] / module).exists()), None)


def installed() -> list[str]:
    """Return the installed versions other than pytest's; if there are none, pytest's: no test is skipped for that."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [version for version in VERSIONS if version != own and interpreter(version)] or [own]


def python_of(version: str) -> Path:
    """Return the Python of the environment of an installed version."""
    base = interpreter(version)
    assert base is not None, f"Python {version} is not installed"
    python = made(f"python{version}", LOCK, base)
    with locked(python.parents[1]):
        _link_ours(site_packages(python), _extension(version, python))
    return python


def _extension(version: str, python: Path) -> Path:
    """Build the extension for this Python; return its file."""
    build = ROOT / "build" / f"python-{version}"
    tools = Path(sys.executable).parent
    core = ours() / "hvd_kernel" / "libhvd_core.so"
    pybind11 = _output(sys.executable, "-m", "pybind11", "--cmakedir")
    _output(
        *(tools / "cmake", "-S", ROOT / "native", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug"),
        *(f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DPython_EXECUTABLE={python}", f"-Dpybind11_DIR={pybind11}"),
        *(f"-DHVD_CORE_LIBRARY={core}", "-DHVD_CUDA=OFF", "-DHVD_MPI=OFF", "-DSKBUILD_DATA_DIR="),
        *("-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=6"),
    )
    _output(tools / "cmake", "--build", build, "--target", "_native")
    (built,) = build.glob(_EXTENSION)
    return built


def _output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def _link_ours(folder: Path, extension: Path) -> None:
    """Link the package file by file: only its extension is another one."""
    package = folder / "hvd_kernel"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir()
    sources = [path for path in (ROOT / "hvd_kernel").iterdir() if path.name != "__pycache__"]
    libraries = [path for path in (ours() / "hvd_kernel").glob("*.so") if not path.match(_EXTENSION)]
    for path in [*sources, *libraries, extension]:
        (package / path.name).symlink_to(path)
    for path in ours().glob(OURS[1]):
        link = folder / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
