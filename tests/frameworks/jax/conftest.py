"""Two ranks for each version of JAX that the tests of this folder share: a rank takes seconds to import it."""

from __future__ import annotations

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool
from hvdtest.pools import kept

VERSIONS = ("jaxnew", "jaxold")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def jax_ranks(version: str) -> RankPool:
    return of_version(version)


@pytest.fixture
def newest() -> RankPool:
    return of_version("jaxnew")


def of_version(version: str) -> RankPool:
    return kept(("jax", version), lambda: Ranks(environment(version), 2, HOROVOD_TIMELINE="DYNAMIC"))
