"""Reductions of a program run concurrently and beside its computation: by the order of events, not by time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

LAYERS, WIDE, STEPS = 8, 256, 5
DELAY_S, ROUNDS = 0.03, 9
KIND = "grouped_allreduce."


def train_step(groups: int) -> tuple[Any, Any, Any]:
    """A compiled step of training a stack of layers, with its first parameters and a batch."""
    import jax
    import jax.numpy as jnp
    import optax

    import hvd_kernel.jax as hvd

    tx = hvd.DistributedGradientTransformation(optax.sgd(0.1), op=hvd.Sum, groups=groups)

    def loss_fn(params: Any, x: Any) -> Any:
        for each in params:
            x = jnp.tanh(x @ each)
        return (x**2).mean()

    @jax.jit
    def step(params: Any, x: Any) -> Any:
        gradients = jax.grad(loss_fn)(params, x)
        updates, _ = tx.update(gradients, tx.init(params), params)
        return optax.apply_updates(params, updates)

    keys = jax.random.split(jax.random.key(0), LAYERS)
    return step, [jax.random.normal(key, (WIDE, WIDE)) / WIDE**0.5 for key in keys], jnp.ones((WIDE, WIDE))


def asked() -> Iterator[list[str]]:
    """Poll, with a limit, the reductions in which rank 1 waits for rank 0."""
    import time

    from hvd_kernel.core import session

    give_up = time.monotonic() + 30
    while time.monotonic() < give_up:
        time.sleep(0.0002)  # rank 1 needs the core
        found = [one["name"] for one in session.engine().pending() if 0 in one["missing"]]
        yield [name.removeprefix(KIND) for name in found if name.startswith(KIND)]


def take_part(names: list[str], tensors: int) -> None:
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    for name in names:
        hvd.grouped_allreduce([jnp.zeros((WIDE, WIDE))] * tensors, hvd.Sum, name=name)


def held_back(path: str) -> list[str]:
    """Rank 1 trains; rank 0 joins no reduction before rank 1 has requested all of them: return the names in that order."""
    import jax

    import hvd_kernel.jax as hvd

    hvd.init()
    step, params, x = train_step(LAYERS)
    if hvd.rank() == 0:
        hvd.start_timeline(path)
    hvd.barrier()
    names: list[str] = []
    if hvd.rank() == 1:
        jax.block_until_ready(step(params, x))
    else:
        for found in asked():
            names += [name for name in found if name not in names]
            if len(names) == LAYERS:
                break
        assert len(names) == LAYERS, f"rank 1 went no further than {names} while none of them had ended"
        take_part(names, 1)
    hvd.barrier()
    if hvd.rank() == 0:
        hvd.stop_timeline()
    return names


def test_backward_overlaps_the_first_reduction(newest: RankPool, tmp_path: Path) -> None:
    """This also holds if an optimizer update follows each reduction, whose memory XLA would reuse for the next gradient."""
    path = tmp_path / "timeline.json"
    names, _ = newest.run(held_back, str(path))
    asks, ends = of_timeline(path)
    assert sorted(asks) == sorted(ends) == sorted(KIND + name for name in names)
    assert max(asks[name][1][0] for name in asks) < min(ends[name][0] for name in ends)


def of_timeline(path: Path) -> tuple[dict[str, dict[int, list[float]]], dict[str, list[float]]]:
    """Return of each reduction when each rank requested it, and when it ended."""
    events = json.loads(path.read_text())
    rows = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    rows = {row: name for row, name in rows.items() if name.startswith(KIND)}
    asks: dict[str, dict[int, list[float]]] = {name: {0: [], 1: []} for name in rows.values()}
    ends: dict[str, list[float]] = {name: [] for name in rows.values()}
    for e in events:
        if e.get("pid") in rows and e["ph"] == "X":
            asks[rows[e["pid"]]][int(e["name"])].append(e["ts"])
        elif e.get("pid") in rows and e["ph"] == "E" and "dtype" in e["args"]:
            ends[rows[e["pid"]]].append(e["ts"])
    return asks, ends


def both_train(path: str) -> None:
    import jax

    import hvd_kernel.jax as hvd

    hvd.init()
    step, params, x = train_step(LAYERS)
    params = jax.block_until_ready(step(params, x))
    if hvd.rank() == 0:
        hvd.start_timeline(path)
    hvd.barrier()
    for _ in range(STEPS):
        params = jax.block_until_ready(step(params, x))
    hvd.barrier()
    if hvd.rank() == 0:
        hvd.stop_timeline()


def test_gradients_are_reduced_before_the_last_one_is_ready(newest: RankPool, tmp_path: Path) -> None:
    """Of 8 in each training step; if reductions ran after the backward pass, the count would be 0."""
    path = tmp_path / "timeline.json"
    newest.run(both_train, str(path))
    asks, ends = of_timeline(path)
    assert len(asks) == LAYERS
    early = []
    for step in range(STEPS):
        last = max(asks[name][rank][step] for name in asks for rank in (0, 1))
        early.append(sum(ends[name][step] < last for name in ends))
    assert max(early) > 0, early


def of_long_reductions() -> dict[str, list[float]]:
    """Return the seconds of rank 1's steps, whose reductions last 30 ms each: rank 0 delays each by that time."""
    import time

    import jax

    import hvd_kernel.jax as hvd

    hvd.init()
    seconds: dict[str, list[float]] = {"buckets": [], "one": []}
    programs = {"buckets": (LAYERS, train_step(LAYERS)), "one": (1, train_step(1))}
    for _ in range(ROUNDS + 1):
        for name, (operations, (step, params, x)) in programs.items():
            hvd.barrier()
            begin = time.perf_counter()
            if hvd.rank() == 1:
                jax.block_until_ready(step(params, x))
                seconds[name].append(time.perf_counter() - begin)
            else:
                reduce_late(operations)
    return {name: each[1:] for name, each in seconds.items()}  # the first ones compile


def reduce_late(operations: int) -> None:
    import time

    since: dict[str, float] = {}
    left = operations
    for found in asked():
        now = time.monotonic()
        due = [name for name in found if now - since.setdefault(name, now) >= DELAY_S]
        take_part(due, LAYERS // operations)
        left -= len(due)
        if not left:
            return


def test_eight_long_reductions_take_the_time_of_one(newest: RankPool) -> None:
    _, seconds = newest.run(of_long_reductions)
    least = {name: min(each) for name, each in seconds.items()}  # what else the machine does comes on top
    assert least["buckets"] < 1.2 * least["one"], seconds


def backwards() -> list[float]:
    """Rank 0 has all of them in a program; rank 1 calls them one after another, the last one first."""
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    start = jnp.ones((64, 64)) / 64
    layers = 12

    @jax.jit
    def step(x: Any) -> Any:
        results = []
        for layer in range(layers):
            x = jnp.tanh(x @ start) + layer
            results.append(hvd.allreduce(x, hvd.Sum, name=f"layer_{layer}"))
        return results

    if hvd.rank() == 0:
        sums = [float(each[0, 0]) for each in step(start)]
    else:
        sums = [
            float(hvd.allreduce(jnp.zeros((64, 64)), hvd.Sum, name=f"layer_{n}")[0, 0]) for n in range(layers)[::-1]
        ][::-1]
    hvd.barrier()
    return sums


def test_reductions_run_concurrently(newest: RankPool) -> None:
    """Of the newest JAX: jaxlib 0.4.38 begins two at a time."""
    first, second = newest.run(backwards)
    assert first == second
    assert first == sorted(first)
