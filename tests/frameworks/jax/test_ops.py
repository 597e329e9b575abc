"""Operations on JAX arrays beyond the table of frameworks/conformance: trees, programs and their errors, random keys."""

from __future__ import annotations

from typing import Any

import pytest
from frameworks.conformance.check import conforms
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

from hvd_kernel.errors import NotInitialized

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def plain(value: Any) -> Any:
    import numpy as np

    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else np.asarray(value).tolist()


def trees(compiled: bool) -> list[Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    rank = hvd.rank()
    wrap = jax.jit if compiled else lambda function: function
    rows = jnp.arange(4) + 10 * rank
    tree = {"a": jnp.array([1.0, 4.0]) + rank, "b": [rows, jnp.int32(rank)]}
    parameters = hvd.broadcast_parameters({"w": rows, "b": jnp.float32(rank)}, 1)
    return [
        jax.tree.map(plain, wrap(hvd.grouped_allreduce)(tree)),
        plain(hvd.allreduce(float(rank))),
        {name: plain(value) for name, value in parameters.items()},
    ]


@pytest.mark.parametrize("compiled", [False, True], ids=["outside", "jit"])
def test_trees_and_numbers(jax_ranks: RankPool, compiled: bool) -> None:
    want = [{"a": [1.5, 4.5], "b": [[5, 6, 7, 8], 0]}, 0.5, {"w": [10, 11, 12, 13], "b": 1.0}]
    assert jax_ranks.run(trees, compiled) == [want, want]


def wrong() -> list[list[str]]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import hvd_kernel.jax as hvd

    hvd.init()
    one = jnp.ones(2)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    shard_map = (
        jax.shard_map
        if hasattr(jax, "shard_map")
        else __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    )
    calls = {
        "rows": lambda: jax.jit(hvd.allgather)(jnp.ones(1 + hvd.rank())),
        "uneven": lambda: jax.jit(hvd.reducescatter)(jnp.ones(3)),
        "keys": lambda: hvd.allreduce(jax.random.key(0)),
        "gradient": lambda: jax.grad(lambda x: hvd.allreduce(x, hvd.Max).sum())(one),
        "tree": lambda: hvd.allreduce({"a": one}),
        "pmap": lambda: jax.pmap(hvd.allreduce)(one[None]),
        "shard_map": lambda: jax.jit(shard_map(hvd.allreduce, mesh=mesh, in_specs=spec, out_specs=spec))(one),
    }
    told = []
    for name, call in calls.items():
        try:
            jax.block_until_ready(call())
        except Exception as error:
            meant = hvd.translated(error)
            told.append([name, type(meant).__name__, str(meant)])
        assert plain(jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))(one)) == [2.0, 2.0], "the next operation works"
    return told


def test_wrong_calls_of_programs(jax_ranks: RankPool) -> None:
    want = {
        "rows": ("Mismatch", "in jit all ranks have the same number of rows"),
        "uneven": ("ValueError", "reducescatter of 3 rows among 2 ranks"),
        "keys": ("ValueError", "key<fry> is not supported: random keys are moved and never reduced"),
        "gradient": ("NotImplementedError", "hvd.allreduce(op=Max) has no gradient"),
        "tree": ("TypeError", "grouped_allreduce"),
        "pmap": ("NotImplementedError", "Start a rank for each device"),
        "shard_map": ("NotImplementedError", "hvd"),
    }
    for told in jax_ranks.run(wrong):
        assert {name: kind for name, kind, _ in told} == {name: kind for name, (kind, _) in want.items()}
        assert all(want[name][1] in text and "hvd_kernel.errors" not in text for name, _, text in told)


def compiled_before() -> str:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    compiled = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))
    assert plain(compiled(jnp.ones(1))) == [2.0]
    hvd.shutdown()
    try:
        compiled(jnp.ones(1))
    except Exception as error:
        meant = hvd.translated(error)
    hvd.init()
    assert plain(compiled(jnp.ones(1))) == [2.0], "what was compiled before is right again"
    return f"{type(meant).__name__}: {meant}"


def test_a_program_after_a_new_init(jax_ranks: RankPool) -> None:
    assert jax_ranks.run(compiled_before) == [f"HorovodInternalError: {NotInitialized()}"] * 2


def test_programs_that_call_python_give_the_same() -> None:
    with Ranks(environment("jaxnew"), 2, HVD_JAX="callback") as ranks:
        for subject in ("reductions", "movements", "shares", "groups"):
            conforms(ranks, "jax, jit", subject)


def keys() -> list[Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import hvd_kernel.jax as hvd

    hvd.init()
    rank, found = hvd.rank(), []
    for make in (jax.random.PRNGKey, jax.random.key):
        mine, root = make(rank), make(1)
        for call in (lambda f: f, jax.jit):
            sent = call(lambda x: hvd.broadcast(x, 1))(mine)
            assert (sent.dtype, sent.shape) == (root.dtype, root.shape)
            found.append([plain(jax.random.uniform(sent, (2,))), plain(jax.random.uniform(root, (2,)))])
        tree = hvd.broadcast_parameters({"key": mine, "step": jnp.uint32(rank)}, root_rank=1)
        found.append([plain(jax.random.uniform(tree["key"], (2,))), plain(jax.random.uniform(root, (2,)))])
        assert int(tree["step"]) == 1
        rows = hvd.allgather(jax.random.split(mine, 2))
        assert rows.dtype == root.dtype
        assert np.array_equal(
            *(np.asarray(jax.random.key_data(each)) for each in (rows[2:], jax.random.split(root, 2)))
        )
    for kind in ("uint8", "int8", "int32"):
        most = jnp.full(3, jnp.iinfo(kind).max, kind)
        assert plain(hvd.allreduce(most - jnp.arange(3, dtype=kind))) == [jnp.iinfo(kind).max - i for i in range(3)]
        assert plain(jax.jit(hvd.allreduce)(most)) == [jnp.iinfo(kind).max] * 3
    moved = jnp.asarray(np.arange(3) + rank, jnp.float8_e4m3fnuz)
    assert plain(jax.jit(lambda x: hvd.broadcast(x, 1))(moved).astype("float32")) == [1.0, 2.0, 3.0]
    return found


def test_random_keys_are_sent_and_integer_means_are_exact(jax_ranks: RankPool) -> None:
    for found in jax_ranks.run(keys):
        assert all(got == want for got, want in found)


def lowered() -> dict[str, list[bool]]:
    """Of programs for GPUs, which this machine lowers and cannot run: whether each operation's program calls the core, and whether it calls Python, for a GPU and for the CPU."""
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


def test_programs_for_a_stream_call_the_core(version: str) -> None:
    with Ranks(environment(version), 2, HVD_JAX="stream") as ranks:
        want = {key: [True, False, True, False] for key in ("allreduce", "broadcast", "reducescatter")}
        assert ranks.run(lowered) == [want, want]
