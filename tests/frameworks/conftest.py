"""Pools of two ranks for each flavour of a framework, shared by the tests of these folders: an import takes seconds.

A test that asks for them runs in each flavour: with each version that one wheel works with, with Keras 2 beside the newest
TensorFlow and with a single thread for its operations, on which whatever blocks it stops the rest.
"""

from __future__ import annotations

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import TESTS, RankPool
from hvdtest.pools import kept

from hvd_kernel import compat

TENSORFLOW: dict[str, tuple[str, int, dict[str, str]]] = {  # environment, threads for operations, variables
    "2.21": ("tf221", 2, {}),
    "2.21, one thread": ("tf221", 1, {}),
    "tf-keras": ("tfkeras", 2, {"TF_USE_LEGACY_KERAS": "1"}),
    "2.15": ("tf215", 2, {}),
    "2.13": ("tf213", 2, {}),
}
JAX = ("jaxnew", "jaxold")
KERAS = {  # environment and variables
    "torch": ("keras_torch_jax", {"KERAS_BACKEND": "torch"}),
    "jax": ("keras_torch_jax", {"KERAS_BACKEND": "jax"}),
    "jax, step in Python": ("keras_torch_jax", {"KERAS_BACKEND": "jax", "HVDTEST_STEP_IN_PYTHON": "1"}),
    "tensorflow": ("tf221", {"KERAS_BACKEND": "tensorflow"}),
    "tf-keras": ("tfkeras", {"TF_USE_LEGACY_KERAS": "1"}),
    "2.15": ("tf215", {}),
    "2.13": ("tf213", {}),
}
KERAS_3 = ("torch", "jax", "jax, step in Python", "tensorflow")


@pytest.fixture(params=TENSORFLOW)
def tf_ranks(request: pytest.FixtureRequest) -> RankPool:
    name, threads, variables = TENSORFLOW[request.param]
    return kept(("tensorflow", request.param), lambda: Ranks(environment(name), 2, interop=threads, **variables))


@pytest.fixture(params=JAX)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def jax_ranks(version: str) -> RankPool:
    return _jax_ranks(version)


@pytest.fixture
def newest() -> RankPool:
    return _jax_ranks("jaxnew")


def _jax_ranks(version: str) -> RankPool:
    return kept(("jax", version), lambda: Ranks(environment(version), 2, HOROVOD_TIMELINE="DYNAMIC"))


@pytest.fixture(params=KERAS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def keras_ranks(flavour: str) -> RankPool:
    name, variables = KERAS[flavour]
    return kept(("keras", flavour), lambda: Ranks(environment(name), 2, **variables))


@pytest.fixture(scope="package")
def as_launched() -> dict[str, str]:
    """Return the variables that hvdrun adds for a rank: with them ``import mxnet`` works, also as the first import."""
    return compat.rank_environment({"PYTHONPATH": str(TESTS)})


@pytest.fixture
def mx_ranks(as_launched: dict[str, str]) -> RankPool:
    return kept(("mxnet",), lambda: Ranks(environment("mxnet"), 2, OMP_NUM_THREADS="1", **as_launched))
