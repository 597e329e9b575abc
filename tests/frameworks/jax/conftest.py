"""Two ranks for each version of JAX that the tests of this folder share: a rank takes seconds to import it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

VERSIONS = ("jaxnew", "jaxold")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class _Pools:
    """One is open at a time; another one after a test that broke it."""

    def __init__(self) -> None:
        self.version, self.pool = "", None

    def of(self, version: str) -> RankPool:
        if self.pool is None or self.pool.broken or version != self.version:
            self.close()
            self.version, self.pool = version, Ranks(environment(version), 2)
        return self.pool

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        self.pool = None


@pytest.fixture(scope="package")
def pools() -> Iterator[_Pools]:
    pools = _Pools()
    yield pools
    pools.close()


@pytest.fixture
def jax_ranks(pools: _Pools, version: str) -> RankPool:
    return pools.of(version)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Version by version within this folder, so that each one's ranks start once."""
    here = [number for number, item in enumerate(items) if "jax_ranks" in getattr(item, "fixturenames", ())]
    in_order = sorted((items[number] for number in here), key=lambda item: VERSIONS.index(_version(item)))
    for number, item in zip(here, in_order, strict=True):
        items[number] = item


def _version(item: pytest.Item) -> str:
    return str(item.callspec.params["version"])  # type: ignore[attr-defined]
