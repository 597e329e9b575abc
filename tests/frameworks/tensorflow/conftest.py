"""Two ranks with TensorFlow that the tests of this folder share: a rank takes seconds to import it.

Every test that asks for them runs in each flavour: with each version that one wheel works with, with Keras 2 beside the
newest, and with a single thread for operations, on which whatever blocks it stops the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

FLAVOURS: dict[str, tuple[str, int, dict[str, str]]] = {  # environment, threads for operations, variables
    "2.21": ("tf221", 2, {}),
    "2.21, one thread": ("tf221", 1, {}),
    "tf-keras": ("tfkeras", 2, {"TF_USE_LEGACY_KERAS": "1"}),
    "2.15": ("tf215", 2, {}),
    "2.13": ("tf213", 2, {}),
}


class SharedRanks:
    """Started when the first test asks, and again after a test that broke them."""

    def __init__(self, flavour: str) -> None:
        self.flavour = flavour
        self._pool: RankPool | None = None

    def get(self) -> RankPool:
        if self._pool is not None and self._pool.broken:
            self.close()
        if self._pool is None:
            name, threads, variables = FLAVOURS[self.flavour]
            self._pool = Ranks(environment(name), 2, interop=threads, **variables)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()


@pytest.fixture(scope="package", params=FLAVOURS)
def shared_ranks(request: pytest.FixtureRequest) -> Iterator[SharedRanks]:
    ranks = SharedRanks(request.param)
    yield ranks
    ranks.close()


@pytest.fixture
def tf_ranks(shared_ranks: SharedRanks) -> RankPool:
    return shared_ranks.get()
