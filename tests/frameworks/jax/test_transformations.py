"""Operations in loops, branches and nested programs (F16), and what a program does in each run; see test_properties.py."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def in_control_flow() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    from jax import lax

    import hvd_kernel.jax as hvd

    hvd.init()
    rank = hvd.rank()
    mine = jnp.array([1.0, 2.0]) * (rank + 1)

    def scanned(x: Any) -> Any:
        return lax.scan(lambda carry, t: (hvd.allreduce(carry, hvd.Sum) * t, carry), x, jnp.array([1.0, 0.5, 0.5]))[0]

    def looped(x: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, hvd.allreduce(s[1]) + 1), (0, x))[1]

    def chosen(x: Any, yes: Any) -> Any:
        return lax.cond(yes, hvd.allreduce, lambda y: hvd.allreduce(-y), x)

    @jax.custom_vjp
    def custom(x: Any) -> Any:
        return hvd.allreduce(x)

    custom.defvjp(lambda x: (custom(x), None), lambda _, ct: (hvd.allreduce(3.0 * ct),))
    donated = jax.jit(lambda x: hvd.allreduce(x) * 2, donate_argnums=0)
    give = mine + 0
    unrolled = jax.jit(lambda x: [hvd.allreduce(x * n) for n in range(3)])
    inner = jax.jit(hvd.allreduce)
    result = {
        "scan": jax.jit(scanned)(mine),
        "grad of scan": jax.jit(jax.grad(lambda x: scanned(x).sum()))(mine),
        "while": jax.jit(looped)(mine),
        "cond": [jax.jit(chosen)(mine, yes) for yes in (True, False)],
        "grad of cond": jax.jit(jax.grad(lambda x: chosen(x, False).sum()))(mine),
        "custom": jax.jit(jax.grad(lambda x: custom(x).sum()))(mine),
        "donated": donated(give),
        "loop": unrolled(mine),
        "jit in jit": jax.jit(lambda x: inner(x) + 1)(mine),
    }
    return jax.tree.map(lambda each: each.tolist(), result) | {"deleted": give.is_deleted()}


def test_in_loops_and_branches(jax_ranks: RankPool) -> None:
    want = {
        "scan": [3.0, 6.0],
        "grad of scan": [2.0, 2.0],
        "while": [4.5, 6.0],
        "cond": [[1.5, 3.0], [-1.5, -3.0]],
        "grad of cond": [-1.0, -1.0],
        "custom": [3.0, 3.0],
        "donated": [3.0, 6.0],
        "loop": [[0.0, 0.0], [1.5, 3.0], [3.0, 6.0]],
        "jit in jit": [2.5, 4.0],
        "deleted": True,
    }
    assert jax_ranks.run(in_control_flow) == [want, want]


def compiled_once() -> list[Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd
    from hvd_kernel.jax import library

    hvd.init()
    traces = []

    @jax.jit
    def step(x: Any) -> Any:
        traces.append(x)
        hvd.barrier()
        same = [hvd.allreduce(x, hvd.Sum, name="same"), hvd.allreduce(x, hvd.Sum, name="same")]
        return same[0] + same[1] + hvd.allreduce(jnp.ones(2), hvd.Sum)

    first = step(jnp.ones(2))
    before = library.counters()
    second = step(jnp.zeros(2))
    after = library.counters()
    return [first.tolist(), second.tolist(), len(traces), after["calls"] - before["calls"], after["aliased"] > 0]


def test_nothing_is_compiled_again_merged_or_dropped(jax_ranks: RankPool) -> None:
    """F18: a barrier whose result nobody reads, two equal allreduces, one of a constant: four operations in each run."""
    assert jax_ranks.run(compiled_once) == [[[6.0, 6.0], [2.0, 2.0], 1, 4, True]] * 2


def twice_at_a_time() -> str:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd
    from hvd_kernel.jax import library

    hvd.init()
    inner = jax.jit(hvd.allreduce)

    @jax.jit
    def outer(x: Any) -> Any:
        results = [inner(x * n) for n in range(20)]
        return sum(results)

    try:
        got = outer(jnp.ones((300, 300)))
    except Exception as error:
        return str(library.translated(error))
    return "" if float(got[0, 0]) == 190.0 else f"wrong: {got[0, 0]}"


def test_one_name_twice_at_a_time_is_right_or_refused(jax_ranks: RankPool) -> None:
    for told in jax_ranks.run(twice_at_a_time):
        assert not told or "is under way twice" in told
