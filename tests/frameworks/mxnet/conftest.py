"""Two ranks with MXNet that the tests of this folder share: a rank takes seconds to import it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import TESTS, RankPool

from hvd_kernel import compat

ENVIRONMENT = "mxnet"


@pytest.fixture(scope="package")
def as_launched() -> dict[str, str]:
    """What hvdrun adds for a rank: with it ``import mxnet`` works, whoever does it first."""
    return compat.rank_environment({"PYTHONPATH": str(TESTS)})


class _Shared:
    """Started when the first test asks, and again after a test that broke them."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables
        self._pool: RankPool | None = None

    def get(self) -> RankPool:
        if self._pool is None or self._pool.broken:
            self.close()
            self._pool = Ranks(environment(ENVIRONMENT), 2, OMP_NUM_THREADS="1", **self._variables)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


@pytest.fixture(scope="package")
def shared(as_launched: dict[str, str]) -> Iterator[_Shared]:
    ranks = _Shared(as_launched)
    yield ranks
    ranks.close()


@pytest.fixture
def mx_ranks(shared: _Shared) -> RankPool:
    return shared.get()
