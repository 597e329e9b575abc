"""Installed frameworks: detected by their metadata and our files, without importing any of them."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hvd_kernel.frameworks import installed, registry
from hvd_kernel.frameworks.frontends import FRONTENDS, NUMPY
from hvd_kernel.frameworks.installed import FRAMEWORKS, Feature, Framework, Installed, state_of

FEATURES = (
    Feature("all of it"),
    Feature("GPUs", without=("some-cpu", "+cpu"), remedy="pip install some"),
    Feature("on torch", "torch"),
)
SOME = Framework("Some", "numpy", ("some", "some-cpu"), "2.13", features=FEATURES[:1])


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


def test_missing_framework_has_no_version(versions: dict[str, str]) -> None:
    assert state_of(SOME) == Installed("Some", "", works=False, summary="not installed")


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
    assert state_of(SOME) == Installed("Some", version, not words, words or "all of it", (("all of it", words),))


@pytest.mark.parametrize(
    ("there", "lacking"),
    [
        ({"some": "3", "torch": "2.9"}, {}),
        ({"some": "3"}, {"on torch": "PyTorch is not installed: pip install torch"}),
        ({"some": "3+cpu", "torch": "2.9"}, {"GPUs": "not in some 3+cpu: pip install some"}),
        ({"some-cpu": "3", "torch": "2.9"}, {"GPUs": "not in some-cpu 3: pip install some"}),
    ],
)
def test_each_backend_works_or_reports_why_not(
    versions: dict[str, str], there: dict[str, str], lacking: dict[str, str]
) -> None:
    versions.update(there)
    found = state_of(Framework("Some", "numpy", ("some", "some-cpu"), features=FEATURES))
    assert found.features == tuple((feature.title, lacking.get(feature.title, "")) for feature in FEATURES)
    working = [feature.title for feature in FEATURES if feature.title not in lacking]
    assert found.works
    assert found.summary == "; ".join([*working, *(f"not {title} ({why})" for title, why in lacking.items())])


def test_framework_without_a_working_backend_does_not_work(versions: dict[str, str]) -> None:
    versions["some"] = "3"
    found = state_of(Framework("Some", "numpy", ("some",), features=FEATURES[2:]))
    assert (found.works, found.summary) == (False, "on torch: PyTorch is not installed: pip install torch")


def test_framework_without_its_plugin_names_the_missing_one(versions: dict[str, str]) -> None:
    versions["some"] = "3"
    lacking = Framework("Some", "numpy", ("some",), plugin="libhvd_none.so")
    assert state_of(lacking) == Installed("Some", "3", works=False, summary="libhvd_none.so was not built")


def test_framework_without_our_api_reports_it(versions: dict[str, str]) -> None:
    versions["some"] = "3"
    assert state_of(Framework("Some", "no_api", ("some",))).summary == "hvd_kernel has no API for it"


def test_every_adapter_is_of_a_framework_in_the_list() -> None:
    other_names = {"tf_keras"}  # Keras 2
    assert set(registry._MODULES) - other_names <= {each.package for each in FRAMEWORKS}


def test_table_of_frontends_names_existing_modules() -> None:
    root = Path(__file__).parents[3]
    for each in (*FRONTENDS, NUMPY):
        assert each.package in registry._MODULES
        assert (root / each.api.replace(".", "/") / "__init__.py").exists()
        assert set(each.later) <= set(each.prefetched)
        ours = [(root / name.replace(".", "/")).with_suffix(".py").read_text() for name in each.attached.values()]
        assert all("\ndef attach(" in text for text in ours)


def test_the_adapter_of_an_unimported_framework_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._MODULES, "hvdtest.no_framework", "hvdtest.no_adapter")
    registry.import_adapters()
    assert "hvdtest.no_adapter" not in sys.modules
    assert all(type(each).__module__.endswith(".adapter") for each in registry.in_use())


@pytest.mark.parametrize(
    "lock",
    sorted((Path(__file__).parents[2] / "frameworks" / "environments").glob("*.txt")),
    ids=lambda path: path.stem,
)
def test_requirements_allow_the_packages_of_each_environment(lock: Path) -> None:
    """numpy>=1.26 kept TensorFlow 2.13, which wants an older one, out of every environment of ours."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    needs = {each.name: each.specifier for each in map(Requirement, project["dependencies"])}
    pinned = dict(line.partition("#")[0].strip().split("==") for line in lock.read_text().splitlines() if "==" in line)
    assert "numpy" in pinned
    assert [f"{name} {there}" for name, there in pinned.items() if name in needs and there not in needs[name]] == []
