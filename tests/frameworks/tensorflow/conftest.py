"""Two ranks with TensorFlow that the tests of this folder share: a rank takes seconds to import it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.environments import environment, quiet
from hvdtest.launch import RankPool


class SharedRanks:
    """Started when the first test asks, and again after a test that broke them."""

    _pool: RankPool | None = None

    def get(self) -> RankPool:
        if self._pool is not None and self._pool.broken:
            self.close()
        if self._pool is None:
            self._pool = RankPool(2, python=environment("tf221"), **quiet())
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()


@pytest.fixture(scope="package")
def shared_ranks() -> Iterator[SharedRanks]:
    ranks = SharedRanks()
    yield ranks
    ranks.close()


@pytest.fixture
def tf_ranks(shared_ranks: SharedRanks) -> RankPool:
    return shared_ranks.get()
