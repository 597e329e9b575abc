"""Every collective under everything that JAX makes of functions (F16), against NumPy, bit by bit, of generated arrays."""

from __future__ import annotations

from typing import Any

import hvdtest.examples  # noqa: F401 - fewer examples in the default tier
import pytest
from hvdtest.launch import RankPool
from hypothesis import given, settings
from hypothesis import strategies as some

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

VALUES = ("outside", "jit", "vmap", "vmap, last axis", "scan", "while", "cond", "donated")
GRADIENTS = (
    "grad",
    "grad outside",
    "jvp",
    "vmap of grad",
    "grad of vmap",
    "checkpoint",
    "grad of scan",
    "custom_vjp",
    "second derivative",
)
FLOATS = ("float32", "float16", "bfloat16")


def differing(way: str, example: dict[str, Any]) -> list[str]:
    """Return the differences between each collective and NumPy's result from both ranks' arrays."""
    import jax.numpy as jnp
    import numpy as np
    from hvdtest import jax_reference as reference

    import hvd_kernel.jax as hvd

    hvd.init()
    rank, random = hvd.rank(), np.random.default_rng(example["seed"])
    shape = 2, 2 * example["halves"], example["columns"]
    both = random.integers(-2, 3, shape).astype(np.float64)
    wrong = []
    for name, one in reference.collectives(example["root"], example["before"], example["after"]).items():
        results = one.values(both)
        weights = random.integers(-2, 3, results.shape).astype(np.float64)
        mine, own = (jnp.asarray(each[rank], example["dtype"]) for each in (both, weights))
        function = lambda x, one=one: one.call(hvd, x)  # noqa: E731
        made = reference.Example(function, rank, one, both, weights, mine, own)
        for got, want in reference.ways()[way](made):
            if np.shape(got) != np.shape(want) or not np.array_equal(np.asarray(got, np.float64), want):
                wrong.append(f"{name}: {got} instead of {want}")
            elif str(getattr(got, "dtype", example["dtype"])) != example["dtype"]:
                wrong.append(f"{name}: {got.dtype}")
    return wrong


def examples(types: tuple[str, ...]) -> Any:
    """Generate shapes, types and other parameters of a collective."""
    return some.fixed_dictionaries(
        {
            "halves": some.integers(1, 3),
            "columns": some.integers(1, 5),
            "dtype": some.sampled_from(types),
            "root": some.integers(0, 1),
            "before": some.sampled_from([1.0, 2.0, 0.5]),
            "after": some.sampled_from([1.0, 4.0, 0.25]),
            "seed": some.integers(0, 2**32 - 1),
        }
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", [*VALUES, *GRADIENTS])
def test_collectives_equal_numpys_results(jax_ranks: RankPool, way: str) -> None:
    @settings(max_examples=3)  # of 15 collectives each, all of which are compiled
    @given(examples(FLOATS))
    def holds(example: dict[str, Any]) -> None:
        assert jax_ranks.run(differing, way, example, timeout=300) == [[], []]

    holds()
