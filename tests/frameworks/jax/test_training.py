"""Training: optax and value_and_grad equal one process with both batches; elastic state; the adapter for cells."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def trained(how: dict[str, Any]) -> dict[str, Any]:
    """The loss of a linear model after some steps of all ranks, and of one process with all batches."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import hvd_kernel.jax as hvd
    from hvd_kernel.core import metrics
    from hvd_kernel.jax import library

    hvd.init()
    random = np.random.default_rng(1)
    x, y = random.standard_normal((2, 8, 5)).astype("float32"), random.standard_normal((2, 8, 3)).astype("float32")
    start = {"w": jnp.asarray(random.standard_normal((5, 3)), "float32") * (hvd.rank() + 1), "b": jnp.zeros(3)}
    start = hvd.broadcast_parameters(start)
    compression = getattr(hvd.Compression, how.pop("compression", "none"))
    manual, compiled = how.pop("manual", False), how.pop("compiled", True)

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    plain = optax.adam(0.1)
    every_k = how.get("every_k", 1)
    tx = plain if manual else hvd.DistributedGradientTransformation(plain, compression=compression, **how)
    value_and_grad = hvd.value_and_grad(loss_fn, compression=compression) if manual else jax.value_and_grad(loss_fn)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = value_and_grad(params, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss)

    run = jax.jit(step) if compiled else step
    before = metrics.snapshot().step
    params, state = start, tx.init(start)
    losses = []
    for _ in range(4 * every_k):
        params, state, loss = run(params, state, x[hvd.rank()], y[hvd.rank()])
        losses.append(float(loss))
    want, alone = start, plain.init(start)
    for _ in range(4):
        grads = jax.grad(loss_fn)(want, x.reshape(16, 5), y.reshape(16, 3))
        updates, alone = plain.update(grads, alone, want)
        want = optax.apply_updates(want, updates)
    near = jax.tree.map(
        lambda a, b: bool(np.allclose(a, b, rtol=1e-2 if how or manual else 1e-4, atol=1e-2)), params, want
    )
    everyone = hvd.allgather_object(jax.tree.map(lambda each: each.tolist(), params))
    return {
        "as one process": near,
        "alike": everyone[0] == everyone[1],
        "falls": losses[-1] < losses[0],
        "steps": metrics.snapshot().step - before,
        "in programs": library.counters()["calls"] > 0,
    }


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"groups": 2},
        {"compression": "bf16"},
        {"every_k": 2},
        {"gradient_predivide_factor": 2.0},
        {"manual": True},
        {"compiled": False},
    ],
    ids=str,
)
def test_ranks_train_as_one_process(jax_ranks: RankPool, how: dict[str, Any]) -> None:
    for got in jax_ranks.run(trained, how):
        assert got == {
            "as one process": {"w": True, "b": True},
            "alike": True,
            "falls": True,
            "steps": 4,
            "in programs": True,
        }


def kept_gradients() -> dict[str, Any]:
    """Gradients of four steps that the user keeps, with arrays that share their memory; a weight under two names."""
    import warnings

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import hvd_kernel.jax as hvd

    hvd.init()
    mine = hvd.rank() + 1.0
    weight = jnp.ones(64)
    tx = hvd.DistributedGradientTransformation(optax.sgd(1.0), op=hvd.Sum)

    def loss_fn(params: Any, scale: Any) -> Any:
        return scale * (params["encoder"].sum() + 2.0 * params["decoder"].sum())

    def step(params: Any, state: Any, scale: Any) -> Any:
        grads = jax.grad(loss_fn)(params, scale)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, grads, updates

    def run(compiled: Any) -> Any:
        params = {"encoder": weight, "decoder": weight}
        if compiled is not step:  # arrays that are donated twice would be refused
            params = jax.tree.map(jnp.array, params)
        state, local, reduced, views = tx.init(params), [], [], []
        for number in range(4):
            params, state, grads, updates = compiled(params, state, mine * number)
            local.append(grads["decoder"])
            reduced.append(updates["decoder"])
            views.append(np.asarray(updates["decoder"]))
        return [
            [float(each[0]), float(each[-1])]
            for each in (*local, *reduced, *views, params["encoder"], params["decoder"])
        ]

    arrays = [jnp.full(64, mine * number) for number in range(4)]
    sums = [hvd.allreduce(each, hvd.Sum) for each in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of JAX cannot donate on the CPU
        donated = run(jax.jit(step, donate_argnums=(0, 1)))
    return {
        "in Python": run(step),
        "compiled": run(jax.jit(step)),
        "donated": donated,
        "operands": [float(each[0]) for each in arrays],
        "sums": [float(each[0]) for each in sums],
    }


def test_kept_gradients_keep_their_values(jax_ranks: RankPool) -> None:
    for rank, results in enumerate(jax_ranks.run(kept_gradients)):
        mine = rank + 1.0
        local = [2.0 * mine * step for step in range(4)]
        updates = [-6.0 * step for step in range(4)]
        values = [[each] * 2 for each in (*local, *updates, *updates, 1.0 - 18.0, 1.0 - 36.0)]
        assert results == {
            "in Python": values,
            "compiled": values,
            "donated": values,
            "operands": [mine * step for step in range(4)],
            "sums": [3.0 * step for step in range(4)],
        }


def functions() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd
    from hvd_kernel.jax import optimizer

    hvd.init()
    mine = {"a": jnp.ones(2) * hvd.rank(), "b": jnp.float32(hvd.rank())}
    loss = lambda p: jnp.sum(p["a"]) * (hvd.rank() + 1) + p["b"]  # noqa: E731
    value, grads = hvd.value_and_grad(loss)(mine)
    told = ""
    try:
        hvd.broadcast_parameters([mine["a"]] * (hvd.rank() + 1))
    except ValueError as error:
        told = str(error)
    leaves = [jnp.zeros(each) for each in (10, 1 << 20, 1 << 18, 1 << 21, 3)]
    aux = hvd.grad(lambda p: (loss(p), "aux"), has_aux=True)(mine)
    return {
        "value": float(value),
        "grads": jax.tree.map(lambda each: each.tolist(), grads),
        "aux": aux[1],
        "forms": told,
        "buckets": [list(optimizer._buckets(leaves, None)), list(optimizer._buckets(leaves, 2))],
    }


def test_gradients_parameters_and_buckets(jax_ranks: RankPool) -> None:
    buckets = [[[4], [3], [2], [1], [0]], [[4, 3], [2, 1, 0]]]
    for rank, got in enumerate(jax_ranks.run(functions)):
        assert got.pop("forms").startswith("broadcast_parameters: the trees of ranks 0 and 1 have different forms")
        assert got == {
            "value": [0.0, 5.0][rank],
            "grads": {"a": [1.5, 1.5], "b": 1.0},
            "aux": "aux",
            "buckets": buckets,
        }


def counted() -> list[list[int]]:
    """Return steps and samples, in programs and outside, of functions that know their batch and of an optimizer with a given one."""
    import jax
    import jax.numpy as jnp
    import optax

    import hvd_kernel.jax as hvd
    from hvd_kernel.core import metrics

    hvd.init()
    w, x, y = jnp.ones(3), jnp.ones((8, 3)), jnp.ones(8)
    loss = lambda w, x, y: jnp.mean((x @ w - y) ** 2)  # noqa: E731
    tx = hvd.DistributedGradientTransformation(optax.sgd(0.1))
    steps = {
        "a program": jax.jit(hvd.value_and_grad(loss)),
        "outside": hvd.grad(loss),
        "another argument": jax.jit(hvd.value_and_grad(lambda x, w, y: loss(w, x, y), argnums=1)),
        "an optimizer": jax.jit(lambda w, x, y: tx.update(jax.grad(loss)(w, x, y), tx.init(w), w)[0]),
        "an optimizer that is told": jax.jit(
            lambda w, x, y: tx.update(jax.grad(loss)(w, x, y), tx.init(w), w, samples=len(x))[0]
        ),
    }
    told = []
    for name, step in steps.items():
        given = (x, w, y) if name == "another argument" else (w, x, y)
        before = metrics.snapshot()
        for _ in range(3):
            jax.block_until_ready(step(*given))
        after = metrics.snapshot()
        told.append([after.step - before.step, after.samples - before.samples])
    return told


def test_samples_are_counted_if_the_batch_is_known(jax_ranks: RankPool) -> None:
    assert jax_ranks.run(counted) == [[*[[3, 24]] * 3, [3, 0], [3, 24]]] * 2


def counted_every_second() -> list[int]:
    import jax
    import jax.numpy as jnp
    import optax

    import hvd_kernel.jax as hvd
    from hvd_kernel.core import metrics

    hvd.init()
    tx = hvd.DistributedGradientTransformation(optax.sgd(0.1), every_k=2)
    step = jax.jit(lambda w, state: tx.update(w, state, w, samples=8))
    w = jnp.ones(3)
    state, before = tx.init(w), metrics.snapshot()
    for _ in range(4):
        _, state = step(w, state)
    after = metrics.snapshot()
    return [after.step - before.step, after.samples - before.samples]


def test_samples_of_accumulating_steps_are_counted(jax_ranks: RankPool) -> None:
    assert jax_ranks.run(counted_every_second) == [[2, 32]] * 2


def elastic() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    rank = hvd.rank()
    state = hvd.elastic.JaxState(params={"w": jnp.ones(2) * rank}, epoch=rank)
    step = jax.jit(lambda p: jax.tree.map(lambda each: hvd.allreduce(each) + 1, p), donate_argnums=0)
    attempts = []

    @hvd.elastic.run
    def train(state: Any) -> list[Any]:
        attempts.append([state.params["w"].tolist(), state.epoch])
        while state.epoch < 3:
            state.params = step(state.params)
            state.epoch += 1
            if state.epoch == 2 and len(attempts) == 1:
                if rank == 1:
                    raise hvd.HorovodInternalError("as a failure does")
                step({"w": jnp.ones(3)})  # of which the other rank knows nothing
            state.commit()
        return state.params["w"].tolist()

    return {"result": train(state), "attempts": attempts}


def test_failed_step_restores_the_last_commit(jax_ranks: RankPool) -> None:
    want = {"result": [3.0, 3.0], "attempts": [[[0.0, 0.0], 0], [[1.0, 1.0], 1]]}
    assert jax_ranks.run(elastic) == [want, want]


def known() -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import optax

    import hvd_kernel.jax as hvd
    from hvd_kernel.core import ops
    from hvd_kernel.frameworks import installed, registry
    from hvd_kernel.worker import names
    from hvd_kernel.worker.inspect import digest, replicate, variables

    hvd.init()
    registry.import_adapters()
    params = {"dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}}
    values = {
        "params": params,
        "opt_state": optax.adam(0.1).init(params),
        "array": jnp.arange(3),
        "half": jnp.ones(2, "bfloat16"),
        "key": jax.random.key(3),
        "differs": jnp.float32(hvd.rank()),
    }
    found = {name: digest.together(digest.leaves(value)) for name, value in values.items()}
    everyone = ops.allgather_object(found)
    packed, lost = replicate._pack(values, [*values])
    again = replicate._load(packed)
    copied = {name: digest.together(digest.leaves(value)) for name, value in again.items()}
    return {
        "equal": sorted(name for name in found if found[name] and everyone[0][name] == everyone[1][name]),
        "copied": sorted(name for name in copied if copied[name] == found[name] != ""),
        "lost": list(lost),
        "facts": [variables.facts(values[name])["dtype"] for name in ("array", "half")],
        "frontend": names._frontend().api,
        "device": registry.adapter("jax").device(0, []).platform,
        "installed": [installed.by_package("jax").version == jax.__version__, installed.by_package("jax").works],
    }


def test_cells_know_jax(jax_ranks: RankPool) -> None:
    numbers = ["array", "half", "key", "opt_state", "params"]
    want = {
        "equal": numbers,
        "copied": sorted([*numbers, "differs"]),
        "lost": [],
        "facts": ["int32", "bfloat16"],
        "frontend": "hvd_kernel.jax",
        "device": "cpu",
        "installed": [True, True],
    }
    assert jax_ranks.run(known) == [want, want]


def weighed() -> dict[str, int]:
    """Return what a model of 1000 parameters and Adam's state add to the memory of this rank, by kinds."""
    import gc

    import jax.numpy as jnp
    import optax

    from hvd_kernel.jax.adapter import ADAPTER

    gc.collect()
    before = ADAPTER.alive_bytes()
    params = {"w": jnp.zeros(1000)}
    state = optax.adam(0.1).init(params)
    after = ADAPTER.alive_bytes()
    return {kind: after[kind] - before[kind] for kind in after if state and params}


def test_memory_by_kinds_has_arrays_and_optax_state(jax_ranks: RankPool) -> None:
    """Two moments of each parameter, and a count."""
    assert jax_ranks.run(weighed) == [{"tensors": 4000 + 8004, "optimizer state": 8004}] * 2
