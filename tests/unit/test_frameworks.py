"""Frameworks that are installed: told by their metadata and our files, without importing any of them."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from hvd_kernel.frameworks import installed, registry
from hvd_kernel.frameworks.installed import FRAMEWORKS, Framework, Installed, look

SOME = Framework("Some", "numpy", ("some", "some-cpu"), "2.13", paths="all of it")


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The distributions that are installed."""
    there: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in there:
            raise PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(installed, "version", version)
    return there


def test_what_is_not_there_has_no_version(versions: dict[str, str]) -> None:
    assert look(SOME) == Installed("Some", "", works=False, words="not installed")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.21.0", ""),
        ("2.13.0rc1+cpu", "too old: 2.13 or newer is needed (pip install --upgrade some)"),
        ("2.12.1", "too old: 2.13 or newer is needed (pip install --upgrade some)"),
        ("of my own", ""),
    ],
)
def test_a_version_below_the_floor_does_not_work(versions: dict[str, str], version: str, words: str) -> None:
    versions["some-cpu"] = version
    assert look(SOME) == Installed("Some", version, not words, words or "all of it")


def test_a_framework_without_its_compiled_part_says_which_one(versions: dict[str, str]) -> None:
    versions["some"] = "3"
    lacking = Framework("Some", "numpy", ("some",), plugin="libhvd_none.so")
    assert look(lacking) == Installed("Some", "3", works=False, words="libhvd_none.so was not built")


def test_one_without_an_api_of_ours_says_so(versions: dict[str, str]) -> None:
    versions["some"] = "3"
    assert look(Framework("Some", "no_api", ("some",))).words == "hvd_kernel has no API for it"


def test_every_adapter_is_of_a_framework_in_the_list() -> None:
    assert set(registry._MODULES) <= {each.package for each in FRAMEWORKS}


def test_the_adapter_of_a_framework_that_is_not_imported_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._MODULES, "hvdtest.no_framework", "hvdtest.no_adapter")
    registry.settle()
    assert "hvdtest.no_adapter" not in sys.modules
    assert all(type(each).__module__.endswith(".adapter") for each in registry.in_use())
