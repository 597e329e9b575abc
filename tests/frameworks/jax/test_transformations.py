"""Operations in loops, branches and nested programs (F16), and the operations of each run; see test_properties.py."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

DIFFER = "Ranks wait for each other forever, because they request different operations"


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


def last_in_a_program() -> dict[str, Any]:
    """Each collective as the last of a program that has a matrix product."""
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    x, y = jnp.arange(8.0).reshape(4, 2), jnp.ones(4) * (hvd.rank() + 1)
    kinds = (hvd.allreduce, hvd.allgather, hvd.broadcast, hvd.alltoall, hvd.reducescatter)
    results = {kind.__name__: jax.jit(lambda x, y, kind=kind: kind(y @ x))(x, y) for kind in kinds}
    loss = lambda x, w: ((x @ w - y) ** 2).sum()  # noqa: E731
    results["gradient"] = jax.jit(hvd.grad(loss, argnums=1))(x, jnp.ones(2))
    return jax.tree.map(lambda each: each.tolist(), results)


def test_a_program_may_end_in_any_collective(jax_ranks: RankPool) -> None:
    """XLA before 0.7.2 aborted the process that compiled one with a matrix product in it."""

    def ours(rank: int) -> dict[str, Any]:
        return {
            "allreduce": [18.0, 24.0],
            "allgather": [12.0, 16.0, 24.0, 32.0],
            "broadcast": [12.0, 16.0],
            "alltoall": [[12.0, 24.0], [16.0, 32.0]][rank],
            "reducescatter": [[18.0], [24.0]][rank],
            "gradient": [212.0, 256.0],
        }

    assert jax_ranks.run(last_in_a_program) == [ours(0), ours(1)]


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


def test_no_operation_is_recompiled_merged_or_dropped(jax_ranks: RankPool) -> None:
    """F18: a barrier with an unused result, two equal allreduces, one of a constant: four operations in each run."""
    assert jax_ranks.run(compiled_once) == [[[6.0, 6.0], [2.0, 2.0], 1, 4, True]] * 2


def one_name_again() -> dict[str, Any]:
    """Return the meaning of a name that is passed to several calls, in a program and outside."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    import hvd_kernel.jax as hvd

    hvd.init()
    rank = hvd.rank()

    def summed(x: Any) -> Any:
        return hvd.allreduce(x, hvd.Sum, name="x")

    mine = jnp.array([1.0, 2.0]) * (rank + 1)
    programs = {
        "two shapes": lambda x: [summed(x), summed(x[:1]), summed(jnp.stack([x, x]))],
        "two kinds": lambda x: [summed(x), hvd.broadcast(x, 1, name="x"), hvd.allgather(x, name="x")],
        "a loop": lambda x: [summed(x * n) for n in range(3)],
        "a scan": lambda x: lax.scan(lambda carry, _: (summed(carry) / 2, carry), x, length=3)[1],
        "a scan and beside it": lambda x: [lax.scan(lambda carry, _: (summed(carry), None), x, length=2)[0], summed(x)],
        "a branch": lambda x: lax.cond(True, summed, lambda x: summed(2 * x), x),
        "a gradient": jax.grad(lambda x: (summed(x) * summed(x * 2)).sum()),
    }
    told = {what: jax.tree.map(lambda each: each.tolist(), jax.jit(one)(mine)) for what, one in programs.items()}
    told["outside"] = [summed(mine).tolist() for _ in range(2)]
    return told


def test_one_name_for_several_calls(jax_ranks: RankPool) -> None:
    """In a program each call has a name of its own, made of it by number; one after the other they may share one."""
    both = [3.0, 6.0]
    want = {
        "two shapes": [both, [3.0], [both, both]],
        "two kinds": [both, [2.0, 4.0], [1.0, 2.0, 2.0, 4.0]],
        "a loop": [[0.0, 0.0], both, [6.0, 12.0]],
        "a scan": ["mine", [1.5, 3.0], [1.5, 3.0]],
        "a scan and beside it": [[6.0, 12.0], both],
        "a branch": both,
        "a gradient": [24.0, 48.0],
        "outside": [both, both],
    }
    for rank, got in enumerate(jax_ranks.run(one_name_again)):
        mine = [1.0 * (rank + 1), 2.0 * (rank + 1)]
        assert got == {**want, "a scan": [mine, [1.5, 3.0], [1.5, 3.0]]}


def once_more_on_one_rank() -> str:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    hvd.barrier()
    times = 2 if hvd.rank() == 1 else 1
    step = jax.jit(lambda x: sum(hvd.allreduce(x, hvd.Sum, name="x") for _ in range(times)))
    try:
        jax.block_until_ready(step(jnp.ones(4)))
        hvd.allreduce(jnp.ones(4), name="after")
    except Exception as error:
        meant = hvd.translated(error)
        return f"{type(meant).__name__}: {meant}"
    return ""


def test_reused_name_is_reported_with_its_number(jax_ranks: RankPool) -> None:
    for told in jax_ranks.run(once_more_on_one_rank):
        assert told.startswith(
            "Mismatch: Ranks wait for each other forever, because they request different operations: "
        )
        assert "rank 0 for ALLREDUCE after" in told or "rank 0 for ALLREDUCE allreduce.after" in told
        assert "rank 1 for ALLREDUCE allreduce.x~1" in told


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
        got = float(outer(jnp.ones((300, 300)))[0, 0])
    except Exception as error:
        told = str(library.translated(error))
    else:
        told = "" if got == 190.0 else f"wrong: {got}"
    with suppress(hvd.HorovodInternalError):
        hvd.allreduce(jnp.ones(1), name="what comes next")
    hvd.shutdown()  # the other rank may request alone: it did so after both had got the error
    return told


def test_concurrent_use_of_one_name_is_exact_or_refused(jax_ranks: RankPool) -> None:
    """A refused rank leaves its peer waiting, which gets the error when the refused rank calls another operation or leaves."""
    for told in jax_ranks.run(twice_at_a_time):
        assert not told or "is under way twice" in told or DIFFER in told
