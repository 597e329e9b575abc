"""Operations outside of programs: which memory the core reads and writes, and which arrays are returned."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def addresses() -> dict[str, Any]:
    """Return the pointers passed to the core, beside the addresses of JAX's arrays."""
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd
    from hvd_kernel.core import handles

    hvd.init()
    given: list[tuple[int, int]] = []
    kinds = ("allreduce_places", "broadcast_places", "reducescatter_places")
    before = {kind: getattr(handles, kind) for kind in kinds}

    def watched(kind: str) -> Any:
        def enqueue(name: str, places: Any, *how: Any, **more: Any) -> Any:
            given.extend((place[0], place[1]) for place in places)
            return before[kind](name, places, *how, **more)

        return enqueue

    computed = jax.jit(lambda: jnp.arange(4000.0).reshape(1000, 4))()
    arrays = {"float": computed, "scalar": jnp.float32(1), "half": jnp.ones(3000, "bfloat16"), "int": jnp.arange(2000)}
    told: dict[str, Any] = {}
    for kind in kinds:
        setattr(handles, kind, watched(kind))
    try:
        for name, array in arrays.items():
            results = [hvd.allreduce(array, hvd.Sum), hvd.broadcast(array, 1)]
            results += [hvd.reducescatter(array, hvd.Sum)] if array.ndim else []
            read, written = zip(*given, strict=True)
            given.clear()
            told[name] = [
                set(read) == {array.unsafe_buffer_pointer()},
                list(written) == [result.unsafe_buffer_pointer() for result in results],
            ]
    finally:
        for kind in kinds:
            setattr(handles, kind, before[kind])
    return told


def test_nothing_is_copied(jax_ranks: RankPool) -> None:
    want = {name: [True, True] for name in ("float", "scalar", "half", "int")}
    assert jax_ranks.run(addresses) == [want, want]


def results() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    free, bound = jnp.ones(4), jax.device_put(jnp.ones(4), jax.devices()[0])
    weak = jnp.asarray(1.0)
    strided = jnp.arange(12.0).reshape(3, 4).T
    step = jax.jit(lambda x: x * 2, donate_argnums=0)
    result = hvd.allreduce(free, hvd.Sum)
    doubled = step(result)
    kept = [hvd.allreduce(jnp.full(1000, float(n)), hvd.Sum) for n in range(50)]
    return {
        "committed": [hvd.allreduce(each).committed for each in (free, bound)],
        "weak": [weak.weak_type, hvd.allreduce(weak).weak_type],
        "strided": hvd.allreduce(strided).tolist() == strided.tolist(),
        "donated": doubled.tolist(),
        "kept": [float(each[0]) for each in kept] == [2.0 * n for n in range(50)],
        "gathered": hvd.allgather(bound).committed,
        "vectors": jax.vmap(hvd.allreduce)(strided).shape,
    }


def test_results_are_arrays_like_their_operands(jax_ranks: RankPool) -> None:
    want = {
        "committed": [False, True],
        "weak": [True, False],
        "strided": True,
        "donated": [4.0] * 4,
        "kept": True,
        "gathered": True,
        "vectors": [4, 3],
    }
    assert jax_ranks.run(results) == [want, want]
