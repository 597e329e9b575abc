"""Two ranks with MXNet that the tests of this folder share: a rank takes seconds to import it."""

from __future__ import annotations

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import TESTS, RankPool
from hvdtest.pools import kept

from hvd_kernel import compat

ENVIRONMENT = "mxnet"


@pytest.fixture(scope="package")
def as_launched() -> dict[str, str]:
    """What hvdrun adds for a rank: with it ``import mxnet`` works, whoever does it first."""
    return compat.rank_environment({"PYTHONPATH": str(TESTS)})


@pytest.fixture
def mx_ranks(as_launched: dict[str, str]) -> RankPool:
    return kept(("mxnet",), lambda: Ranks(environment(ENVIRONMENT), 2, OMP_NUM_THREADS="1", **as_launched))
