"""Operations on JAX arrays, inside of jit and outside: values of every type, trees, errors, process sets."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.environments import Ranks, environment
from hvdtest.launch import RankPool

from hvd_kernel.core.ops import SPLITS_ARE_INTEGERS

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

TYPES = ("uint8", "int8", "uint16", "int16", "int32", "float16", "float32", "bfloat16", "complex64")


def plain(value: Any) -> Any:
    import numpy as np

    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else np.asarray(value).tolist()


def everywhere(compiled: bool) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    rank = hvd.rank()
    wrap = jax.jit if compiled else lambda function: function
    mine = jnp.array([1.0, 4.0]) + rank
    rows = jnp.arange(4) + 10 * rank
    reductions = {"average": hvd.Average, "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}
    return {
        **{name: plain(wrap(lambda x, op=op: hvd.allreduce(x, op))(mine)) for name, op in reductions.items()},
        "scaled": plain(wrap(lambda x: hvd.allreduce(x, prescale_factor=2.0, postscale_factor=0.5))(mine)),
        "integers": plain(wrap(hvd.allreduce)(jnp.array([1, -4]) + rank)),
        "bool": plain(wrap(lambda x: hvd.allreduce(x, hvd.Sum))(jnp.array([rank == 1, False]))),
        "scalar": plain(wrap(hvd.allreduce)(jnp.float32(rank))),
        "number": plain(hvd.allreduce(float(rank))),
        "empty": plain(wrap(hvd.allreduce)(jnp.zeros((0, 3)))),
        "tree": jax.tree.map(plain, wrap(hvd.grouped_allreduce)({"a": mine, "b": [rows, jnp.int32(rank)]})),
        "no tree": hvd.grouped_allreduce([]),
        "allgather": plain(wrap(hvd.allgather)(rows)),
        "gathers": plain(wrap(hvd.grouped_allgather)([rows[:1], mine])),
        "broadcast": plain(wrap(lambda x: hvd.broadcast(x, 1))(mine)),
        "broadcasts": plain(wrap(lambda x: hvd.grouped_broadcast(x, 0))([mine, rows])),
        "alltoall": plain(wrap(hvd.alltoall)(rows)),
        "reducescatter": plain(wrap(lambda x: hvd.reducescatter(x, hvd.Sum))(rows)),
        "scatters": plain(wrap(hvd.grouped_reducescatter)([rows, mine])),
        "compressed": plain(wrap(lambda x: hvd.allreduce(x, compression=hvd.Compression.bf16))(mine)),
        "untouched": plain(mine),
    }


@pytest.mark.parametrize("compiled", [False, True], ids=["outside", "jit"])
def test_every_operation(jax_ranks: RankPool, compiled: bool) -> None:
    def ours(rank: int) -> dict[str, Any]:
        return {
            "average": [1.5, 4.5],
            "sum": [3.0, 9.0],
            "min": [1.0, 4.0],
            "max": [2.0, 5.0],
            "product": [2.0, 20.0],
            "scaled": [1.5, 4.5],
            "integers": [1, -3],
            "bool": [True, False],
            "scalar": 0.5,
            "number": 0.5,
            "empty": [],
            "tree": {"a": [1.5, 4.5], "b": [[5, 6, 7, 8], 0]},
            "no tree": [],
            "allgather": [0, 1, 2, 3, 10, 11, 12, 13],
            "gathers": [[0, 10], [1.0, 4.0, 2.0, 5.0]],
            "broadcast": [2.0, 5.0],
            "broadcasts": [[1.0, 4.0], [0, 1, 2, 3]],
            "alltoall": [[0, 1, 10, 11], [2, 3, 12, 13]][rank],
            "reducescatter": [[10, 12], [14, 16]][rank],
            "scatters": [[[5, 6], [7, 8]][rank], [[1.5], [4.5]][rank]],
            "compressed": [1.5, 4.5],
            "untouched": [1.0 + rank, 4.0 + rank],
        }

    assert jax_ranks.run(everywhere, compiled) == [ours(0), ours(1)]


def every_type(name: str) -> list[Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    mine = jnp.array([1 + hvd.rank(), 0]).astype(name)
    made = []
    for wrap in (jax.jit, lambda function: function):
        made += [wrap(lambda x: hvd.allreduce(x, hvd.Sum))(mine), wrap(hvd.allgather)(mine), wrap(hvd.alltoall)(mine)]
        made += [wrap(lambda x: hvd.reducescatter(x, hvd.Sum))(mine), wrap(lambda x: hvd.broadcast(x, 1))(mine)]
    assert {str(each.dtype) for each in made} == {name}
    return plain([each.astype("float32") for each in made])


@pytest.mark.parametrize("name", TYPES)
def test_every_type(jax_ranks: RankPool, name: str) -> None:
    def ours(rank: int) -> list[Any]:
        shares = [[[1.0, 2.0], [0.0, 0.0]][rank], [[3.0], [0.0]][rank]]
        return [[3.0, 0.0], [1.0, 0.0, 2.0, 0.0], *shares, [2.0, 0.0]] * 2

    assert jax_ranks.run(every_type, name) == [ours(0), ours(1)]


def only_outside() -> dict[str, Any]:
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    rank = hvd.rank()
    rows = jnp.arange(4) + 10 * rank
    return {
        "rows": plain(hvd.allgather(jnp.full((rank + 1, 1), rank))),
        "splits": plain(hvd.alltoall(rows, splits=[1, 2])),
        "uneven": plain(hvd.reducescatter(jnp.arange(3.0), hvd.Sum)),
        "objects": hvd.allgather_object({"rank": rank}),
        "object": hvd.broadcast_object(rank, 1),
        "parameters": plain(list(hvd.broadcast_parameters({"w": rows, "b": jnp.float32(rank)}, 1).values())),
    }


def test_what_has_shapes_of_its_own_on_each_rank_works_outside(jax_ranks: RankPool) -> None:
    both = {
        "rows": [[0], [1], [1]],
        "objects": [{"rank": 0}, {"rank": 1}],
        "object": 1,
        "parameters": [1.0, [10, 11, 12, 13]],
    }
    first = {"splits": [[0, 10], [1, 1]], "uneven": [0.0, 2.0]}
    second = {"splits": [[1, 2, 11, 12], [2, 2]], "uneven": [4.0]}
    got = jax_ranks.run(only_outside)
    for rank, special in enumerate((first, second)):
        want = both | special
        assert {**got[rank], "parameters": sorted(got[rank]["parameters"], key=str)} == {
            **want,
            "parameters": sorted(want["parameters"], key=str),
        }


def wrong() -> list[list[str]]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    import hvd_kernel.jax as hvd

    hvd.init()
    rank = hvd.rank()
    one = jnp.ones(2)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    shard_map = (
        jax.shard_map
        if hasattr(jax, "shard_map")
        else __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
    )
    calls = {
        "shape": lambda: jax.jit(hvd.allreduce)(jnp.ones(2 + rank)),
        "shape outside": lambda: hvd.allreduce(jnp.ones(2 + rank)),
        "type": lambda: jax.jit(hvd.allreduce)(jnp.ones(2, ["float32", "int32"][rank])),
        "rows": lambda: jax.jit(hvd.allgather)(jnp.ones(1 + rank)),
        "splits": lambda: jax.jit(lambda x: hvd.alltoall(x, splits=[1, 1]))(one),
        "splits of float32": lambda: hvd.alltoall(one, splits=jnp.array([1.5, 0.5])),
        "uneven": lambda: jax.jit(hvd.reducescatter)(jnp.ones(3)),
        "root": lambda: hvd.broadcast(one, 2),
        "unsigned": lambda: hvd.allreduce(jnp.ones(2, "uint32")),
        "keys": lambda: hvd.allreduce(jax.random.key(0)),
        "minimum of rows": lambda: hvd.reducescatter(one, hvd.Min),
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


def test_wrong_calls(jax_ranks: RankPool) -> None:
    want = {
        "shape": ("Mismatch", "(rank 0: [2]; rank 1: [3])"),
        "shape outside": ("Mismatch", "(rank 0: [2]; rank 1: [3])"),
        "type": ("Mismatch", "int32"),
        "rows": ("Mismatch", "in jit all ranks have the same number of rows"),
        "splits": ("ValueError", "use it outside of jit"),
        "splits of float32": ("ValueError", SPLITS_ARE_INTEGERS.format(dtype="float32")),
        "uneven": ("ValueError", "reducescatter of 3 rows among 2 ranks"),
        "root": ("ValueError", "invalid root rank 2"),
        "unsigned": ("ValueError", "uint32 is not supported by Average: cast it to int64"),
        "keys": ("ValueError", "key<fry> is not supported: random keys are moved and never reduced"),
        "minimum of rows": ("HorovodInternalError", "only supports AVERAGE and SUM"),
        "gradient": ("NotImplementedError", "hvd.allreduce(op=Max) has no gradient"),
        "tree": ("TypeError", "grouped_allreduce"),
        "pmap": ("NotImplementedError", "Start a rank for each device"),
        "shard_map": ("NotImplementedError", "hvd"),
    }
    for told in jax_ranks.run(wrong):
        assert {name: kind for name, kind, _ in told} == {name: kind for name, (kind, _) in want.items()}
        for name, _, text in told:
            assert want[name][1] in text
            assert "hvd_kernel.errors" not in text


def sets() -> list[Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init(process_sets="dynamic")
    alone = [hvd.add_process_set([rank]) for rank in range(2)]
    own, other = alone[hvd.rank()], alone[1 - hvd.rank()]
    here = jnp.array([2.0]) + hvd.rank()
    kinds = (hvd.allreduce, hvd.allgather, hvd.reducescatter)

    def both(x: Any) -> list[Any]:
        return [kind(x, process_set=own) for kind in kinds]

    result = [plain(both(here)), plain(jax.jit(both)(here))]
    try:
        hvd.allreduce(here, process_set=other)
    except ValueError as error:
        result.append(str(error))
    for each in alone:
        hvd.remove_process_set(each)
    hvd.shutdown()
    return result


def test_process_sets(jax_ranks: RankPool) -> None:
    assert jax_ranks.run(sets) == [
        [[[2.0 + rank]] * 3, [[2.0 + rank]] * 3, f"Allreduce: Rank {rank} is not a member of the provided process set."]
        for rank in range(2)
    ]


def before_and_after() -> list[str]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    compiled = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))
    assert plain(compiled(jnp.ones(1))) == [2.0]
    hvd.shutdown()
    said = []
    for call in (hvd.rank, lambda: hvd.allreduce(jnp.ones(1)), lambda: compiled(jnp.ones(1))):
        try:
            call()
        except Exception as error:
            meant = hvd.translated(error)
            said.append(f"{type(meant).__name__}: {meant}")
    hvd.init()
    assert plain(compiled(jnp.ones(1))) == [2.0], "what was compiled before is right again"
    hvd.barrier()
    return [*said, str(hvd.join() in {0, 1})]


def test_nothing_works_before_init_and_all_after_a_second_one(jax_ranks: RankPool) -> None:
    kinds = ["NotInitialized", "HorovodInternalError", "HorovodInternalError"]
    told = [f"{kind}: Horovod has not been initialized; use hvd.init()." for kind in kinds]
    assert jax_ranks.run(before_and_after) == [[*told, "True"]] * 2


def test_programs_that_call_python_give_the_same() -> None:
    with Ranks(environment("jaxnew"), 2) as ranks, Ranks(environment("jaxnew"), 2, HVD_JAX="callback") as called:
        assert called.run(everywhere, True) == ranks.run(everywhere, True)


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


def test_random_keys_are_moved_and_means_of_integers_exact(jax_ranks: RankPool) -> None:
    for found in jax_ranks.run(keys):
        assert all(got == want for got, want in found)
