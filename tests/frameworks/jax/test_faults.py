"""Ranks that die in a program (F19), programs whose orders differ (F17), and another number of ranks (F20)."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

SAID = "Ranks wait for each other forever, because they request different operations: "


def death() -> list[Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    hvd.barrier()

    @jax.jit
    def step(x: Any) -> Any:
        return hvd.allreduce(x) + hvd.allreduce(2 * x)

    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        step(jnp.ones(1000))
    except Exception as error:
        meant = hvd.translated(error)
        return [type(meant).__name__, meant.rank, float(jax.jit(lambda x: x + 1)(1.0))]
    return []


def test_survivors_of_a_death_raise_and_jax_continues_to_work(version: str) -> None:
    with Ranks(environment(version), 3) as ranks:
        said = ["RankDied", 1, 2.0]
        assert ranks.run(death, gone={1: -signal.SIGKILL}) == [said, None, said]


def opposite_orders() -> str:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    hvd.barrier()
    first, second = ("a", "b") if hvd.rank() == 0 else ("b", "a")

    @jax.jit
    def step(x: Any) -> Any:
        y = hvd.allreduce(x, name=first)
        return hvd.allreduce(y, name=second)

    try:
        step(jnp.ones(4))
    except Exception as error:
        meant = hvd.translated(error)
        assert float(jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))(jnp.ones(()))) == 2.0, "the next operation works"
        return f"{type(meant).__name__}: {meant}"
    return ""


def test_opposite_orders_are_reported_with_names_and_rule(jax_ranks: RankPool) -> None:
    rule = (
        " None of them requests anything else before its own has completed. Operations of a graph (tf.function, jax.jit) must "
        "be the same on every rank, and in JAX their order too."
    )
    for told in jax_ranks.run(opposite_orders):
        assert told.startswith(f"Mismatch: {SAID}")
        assert told.endswith(rule)
        waits = told.removeprefix(f"Mismatch: {SAID}").removesuffix(rule).rstrip(".").split("; ")
        assert sorted(waits) == ["rank 0 for ALLREDUCE allreduce.a", "rank 1 for ALLREDUCE allreduce.b"]


def late() -> float:
    import time

    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    step = jax.jit(lambda x: hvd.allreduce(hvd.allreduce(x, hvd.Sum, name="one"), hvd.Sum, name="two"))
    step(jnp.ones(4))
    if hvd.rank() == 1:
        time.sleep(2.0)
    return float(step(jnp.ones(4))[0])


def test_late_rank_is_awaited(jax_ranks: RankPool) -> None:
    assert jax_ranks.run(late) == [4.0, 4.0]


def of_another_size() -> list[Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    class Alone:
        def __enter__(self) -> None:
            hvd.shutdown()
            self.before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HOROVOD_")}
            os.environ["HVD_BOOTSTRAP"] = "none"
            hvd.init()

        def __exit__(self, *_: object) -> None:
            hvd.shutdown()
            del os.environ["HVD_BOOTSTRAP"]
            os.environ.update(self.before)

    mean = jax.jit(hvd.allreduce)
    rows = jax.jit(hvd.allgather)
    mine = jnp.array([1.0])
    told: list[Any] = []
    with Alone():
        told += [mean(mine).tolist(), rows(mine).tolist()]
    hvd.init()
    told.append(mean(mine + hvd.rank()).tolist())
    try:
        rows(mine)
    except Exception as error:
        told.append(str(hvd.translated(error)))
    hvd.elastic.JaxState(params=mine).reset()
    told.append(rows(mine + hvd.rank()).tolist())
    return told


def test_programs_run_with_another_number_of_ranks(version: str) -> None:
    with Ranks(environment(version), 2) as ranks:
        told = (
            "allgather.jit was compiled for 1 ranks, and there are 2 now: call jax.clear_caches() after the number of "
            "ranks has changed"
        )
        assert ranks.run(of_another_size) == [[[1.0], [1.0], [1.5], told, [1.0, 2.0]]] * 2
