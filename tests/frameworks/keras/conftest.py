"""Two ranks for each flavour of Keras, which the tests of this folder share: a rank takes seconds to import it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

FLAVOURS = {  # environment and variables
    "torch": ("keras_torch_jax", {"KERAS_BACKEND": "torch"}),
    "jax": ("keras_torch_jax", {"KERAS_BACKEND": "jax"}),
    "tensorflow": ("tf221", {"KERAS_BACKEND": "tensorflow"}),
    "tf-keras": ("tfkeras", {"TF_USE_LEGACY_KERAS": "1"}),
    "2.15": ("tf215", {}),
    "2.13": ("tf213", {}),
}
KERAS_3 = ("torch", "jax", "tensorflow")


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class _Pools:
    """One is open at a time: it takes a gigabyte."""

    def __init__(self) -> None:
        self.flavour, self.pool = "", None

    def of(self, flavour: str) -> RankPool:
        if self.pool is None or self.pool.broken or flavour != self.flavour:
            self.close()
            name, variables = FLAVOURS[flavour]
            self.flavour, self.pool = flavour, Ranks(environment(name), 2, **variables)
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
def keras_ranks(pools: _Pools, flavour: str) -> RankPool:
    return pools.of(flavour)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Flavour by flavour within this folder, so that each one's ranks start once."""
    here = [number for number, item in enumerate(items) if "keras_ranks" in getattr(item, "fixturenames", ())]
    in_order = sorted((items[number] for number in here), key=lambda item: list(FLAVOURS).index(_flavour(item)))
    for number, item in zip(here, in_order, strict=True):
        items[number] = item


def _flavour(item: pytest.Item) -> str:
    return str(item.callspec.params["flavour"])  # type: ignore[attr-defined]
