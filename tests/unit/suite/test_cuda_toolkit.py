"""The build's search for nvcc: a machine's toolkit first, else the wheels of PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLKIT = Path(__file__).resolve().parents[3] / "native" / "cuda" / "toolkit.cmake"
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(toolkit NONE)
include({toolkit})
message(STATUS "nvcc=${{HVD_NVCC}}")
message(STATUS "include=${{HVD_CUDA_INCLUDE}}")
"""
HIDDEN = "-DCMAKE_IGNORE_PATH=/usr/local/cuda/bin;/usr/local/cuda/include;/usr/bin;/usr/local/bin"


def toolkit_in(folder: Path) -> Path:
    """Return a toolkit with the files that are searched, which do nothing."""
    for name in ("bin/nvcc", "include/cuda.h"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch(mode=0o755)
    return folder


def found(tmp_path: Path, *options: str, **environment: str) -> dict[str, str]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(PROJECT.format(toolkit=TOOLKIT))
    cmake, ninja = (str(Path(sys.executable).with_name(name)) for name in ("cmake", "ninja"))
    command = [cmake, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-S", str(source), "-B", str(tmp_path / "build")]
    clean = {name: value for name, value in os.environ.items() if name != "CUDA_HOME"}
    done = subprocess.run(
        [*command, f"-DPython_EXECUTABLE={sys.executable}", *options],
        env=clean | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = (line.removeprefix("-- ").partition("=") for line in done.stdout.splitlines())
    return {name: value for name, _, value in said if name in {"nvcc", "include"}}


@pytest.mark.parametrize("release", ["cu12", "cu13"])
def test_wheels_of_pypi_are_found(tmp_path: Path, release: str) -> None:
    toolkit = toolkit_in(tmp_path / "packages" / "nvidia" / release)
    assert found(tmp_path, HIDDEN, PYTHONPATH=str(tmp_path / "packages"), PATH="") == {
        "nvcc": str(toolkit / "bin" / "nvcc"),
        "include": str(toolkit / "include"),
    }


def test_cuda_home_is_preferred_to_the_wheels(tmp_path: Path) -> None:
    toolkit_in(tmp_path / "packages" / "nvidia" / "cu13")
    toolkit = toolkit_in(tmp_path / "home")
    assert found(tmp_path, HIDDEN, PYTHONPATH=str(tmp_path / "packages"), CUDA_HOME=str(toolkit), PATH="") == {
        "nvcc": str(toolkit / "bin" / "nvcc"),
        "include": str(toolkit / "include"),
    }


def test_no_toolkit_is_found_without_candidates(tmp_path: Path) -> None:
    assert found(tmp_path, HIDDEN, PATH="")["nvcc"] == "HVD_NVCC-NOTFOUND"
