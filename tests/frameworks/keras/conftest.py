"""Two ranks for each flavour of Keras, which the tests of this folder share: a rank takes seconds to import it."""

from __future__ import annotations

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool
from hvdtest.pools import kept

FLAVOURS = {  # environment and variables
    "torch": ("keras_torch_jax", {"KERAS_BACKEND": "torch"}),
    "jax": ("keras_torch_jax", {"KERAS_BACKEND": "jax"}),
    "jax, step in Python": ("keras_torch_jax", {"KERAS_BACKEND": "jax", "HVDTEST_STEP_IN_PYTHON": "1"}),
    "tensorflow": ("tf221", {"KERAS_BACKEND": "tensorflow"}),
    "tf-keras": ("tfkeras", {"TF_USE_LEGACY_KERAS": "1"}),
    "2.15": ("tf215", {}),
    "2.13": ("tf213", {}),
}
KERAS_3 = ("torch", "jax", "jax, step in Python", "tensorflow")


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def keras_ranks(flavour: str) -> RankPool:
    name, variables = FLAVOURS[flavour]
    return kept(("keras", flavour), lambda: Ranks(environment(name), 2, **variables))
