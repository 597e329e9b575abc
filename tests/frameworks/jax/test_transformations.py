"""What JAX makes of the operations (F16): gradients, tangents, vectors, loops; against NumPy, of random arrays."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def against_numpy(seed: int) -> list[str]:
    """The names of what differs from what NumPy computes with both ranks' arrays."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import hvd_kernel.jax as hvd

    hvd.init()
    rank = hvd.rank()
    random = np.random.default_rng(seed)
    rows, columns = 2 * int(random.integers(1, 4)), int(random.integers(1, 5))
    both = random.standard_normal((2, rows, columns)).astype(np.float32)
    mine = jnp.asarray(both[rank])
    weights = random.standard_normal((2, 2 * rows, columns)).astype(np.float32)  # of the loss, for each rank
    mean, half = weights[:, :rows].mean(0), rows // 2
    operations = {  # the function; its value; the gradient of sum(weights * value), by Horovod's rules
        "average": (hvd.allreduce, both.mean(0), mean),
        "sum": (lambda x: hvd.allreduce(x, hvd.Sum), both.sum(0), weights[:, :rows].sum(0)),
        "scaled": (lambda x: hvd.allreduce(x, prescale_factor=3.0), 3 * both.mean(0), 3 * mean),
        "group": (lambda x: hvd.grouped_allreduce([x, x[0]])[0], both.mean(0), mean),
        "allgather": (hvd.allgather, both.reshape(2 * rows, columns), weights.mean(0)[rank * rows : (rank + 1) * rows]),
        "broadcast": (lambda x: hvd.broadcast(x, 1), both[1], mean * (rank == 1)),
        "alltoall": (
            hvd.alltoall,
            both[:, rank * half : (rank + 1) * half].reshape(rows, columns),
            weights[:, :rows].reshape(2, 2, half, columns)[:, rank].reshape(rows, columns),
        ),
        "reducescatter": (
            hvd.reducescatter,
            both.mean(0)[rank * half : (rank + 1) * half],
            weights[:, :half].reshape(rows, columns),
        ),
        "scattered sum": (
            lambda x: hvd.reducescatter(x, hvd.Sum),
            both.sum(0)[rank * half : (rank + 1) * half],
            2 * weights[:, :half].reshape(rows, columns),
        ),
    }
    wrong = []

    def check(name: str, got: Any, want: Any) -> None:
        if not np.allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5):
            wrong.append(f"{name}: {got} instead of {want}")

    for name, (function, value, gradient) in operations.items():
        own = jnp.asarray(weights[rank][: value.shape[0]])
        loss = lambda x, function=function, own=own: jnp.sum(function(x) * own)  # noqa: E731
        check(name, jax.jit(function)(mine), value)
        check(f"grad of {name}", jax.jit(jax.grad(loss))(mine), gradient)
        check(f"grad of {name} outside", jax.grad(loss)(mine), gradient)
        check(f"jvp of {name}", jax.jit(lambda x, f=function: jax.jvp(f, (x,), (2 * x,))[1])(mine), 2 * value)
        check(f"checkpointed {name}", jax.jit(jax.grad(jax.checkpoint(loss)))(mine), gradient)
        stacked = jnp.stack([mine, -mine, 2 * mine])
        check(f"vmap of {name}", jax.jit(jax.vmap(function))(stacked), np.stack([value, -value, 2 * value]))
        check(f"vmap of grad of {name}", jax.jit(jax.vmap(jax.grad(loss)))(stacked), np.stack([gradient] * 3))
        last = jnp.moveaxis(stacked, 0, 2)
        check(f"vmap of {name}, last", jax.jit(jax.vmap(function, 2))(last), np.stack([value, -value, 2 * value]))
        squares = lambda x, function=function: jnp.sum(function(x * x))  # noqa: E731
        ones = jax.jit(jax.grad(lambda x, f=function: jnp.sum(f(x))))(mine)
        direction = jnp.asarray(both[1])
        slope = jax.grad(squares)
        hessian = jax.jit(lambda x, g=slope: jax.jvp(g, (x,), (direction,))[1])(mine)
        check(f"second derivative of {name}", hessian, 2 * np.asarray(ones) * both[1])
    return wrong


@pytest.mark.parametrize("seed", range(6))
def test_operations_and_what_is_made_of_them(jax_ranks: RankPool, seed: int) -> None:
    assert jax_ranks.run(against_numpy, seed) == [[], []]


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
