"""Programs for GPUs (HVD_JAX=stream), which this machine lowers and cannot run: they call the core."""

from __future__ import annotations

import pytest
from hvdtest.environments import Ranks, environment

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def lowered() -> dict[str, list[bool]]:
    """Whether each operation's program calls the core, and whether it calls Python, for a GPU and for the CPU."""
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    told = {}
    for name in ("allreduce", "broadcast", "reducescatter"):
        traced = jax.jit(getattr(hvd, name)).trace(jnp.ones(4))
        texts = [traced.lower(lowering_platforms=(platform,)).as_text() for platform in ("cuda", "cpu")]
        told[name] = [word in text for text in texts for word in ("@hvd_jax", "callback")]
    return told


def test_what_goes_to_the_stream(version: str) -> None:
    with Ranks(environment(version), 2, HVD_JAX="stream") as ranks:
        want = {key: [True, False, True, False] for key in ("allreduce", "broadcast", "reducescatter")}
        assert ranks.run(lowered) == [want, want]
