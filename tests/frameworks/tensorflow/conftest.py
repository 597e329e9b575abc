"""Two ranks with TensorFlow that the tests of this folder share: a rank takes seconds to import it.

Every test that asks for them runs in each flavour: with each version that one wheel works with, with Keras 2 beside the
newest, and with a single thread for operations, on which whatever blocks it stops the rest.
"""

from __future__ import annotations

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool
from hvdtest.pools import kept

FLAVOURS: dict[str, tuple[str, int, dict[str, str]]] = {  # environment, threads for operations, variables
    "2.21": ("tf221", 2, {}),
    "2.21, one thread": ("tf221", 1, {}),
    "tf-keras": ("tfkeras", 2, {"TF_USE_LEGACY_KERAS": "1"}),
    "2.15": ("tf215", 2, {}),
    "2.13": ("tf213", 2, {}),
}


@pytest.fixture(params=FLAVOURS)
def tf_ranks(request: pytest.FixtureRequest) -> RankPool:
    name, threads, variables = FLAVOURS[request.param]
    return kept(("tensorflow", request.param), lambda: Ranks(environment(name), 2, interop=threads, **variables))
