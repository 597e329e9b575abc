"""Reductions of a program are under way together and beside its computation: proven by another rank's order, not by time."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.environments import Ranks, environment

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

LAYERS = 12


def backwards() -> list[float]:
    """Rank 0 has all of them in a program; rank 1 takes part in one after the other, the last one first."""
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    start = jnp.ones((64, 64)) / 64

    @jax.jit
    def step(x: Any) -> Any:
        results = []
        for layer in range(LAYERS):
            x = jnp.tanh(x @ start) + layer
            results.append(hvd.allreduce(x, hvd.Sum, name=f"layer_{layer}"))
        return results

    if hvd.rank() == 0:
        sums = [float(each[0, 0]) for each in step(start)]
    else:
        sums = [
            float(hvd.allreduce(jnp.zeros((64, 64)), hvd.Sum, name=f"layer_{n}")[0, 0]) for n in range(LAYERS)[::-1]
        ][::-1]
    hvd.barrier()
    return sums


def test_reductions_are_under_way_together() -> None:
    """Of the newest JAX: jaxlib 0.4.38 begins two at a time."""
    with Ranks(environment("jaxnew"), 2) as ranks:
        first, second = ranks.run(backwards)
    assert first == second
    assert first == sorted(first)
