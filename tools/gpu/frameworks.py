"""Arrays of other frameworks on a GPU: sums of two ranks that share it, whether they are right and how long they take. Markdown.

Each way has ranks of its own, clients of a private MPS daemon where there is one.

    python -P tools/gpu/frameworks.py
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ranks import output_of

RANKS, SIZE, ROUNDS = 2, 1 << 26, 8
COUNT = SIZE // 4
GIVEN_S = 50.0
MARK = "row:"


class Way(NamedTuple):
    """Function with which a rank sums arrays of a library."""

    hvd: Any  # the library's Horovod API, initialised
    full: Callable[[float], Any]  # an array on the device
    summed: Callable[[Any], Any]
    wait: Callable[[Any], Any]  # until an array is there


def _cupy() -> Way:
    import cupy

    import hvd_kernel.numpy as hvd

    hvd.init()
    device = cupy.cuda.Device()
    return Way(
        hvd,
        lambda value: cupy.full(COUNT, value, cupy.float32),
        lambda x: hvd.allreduce_(x, op=hvd.Sum),
        lambda _: device.synchronize(),
    )


def _jax(*, jitted: bool) -> Way:
    import jax
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()

    def summed(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    return Way(
        hvd,
        lambda value: jnp.full(COUNT, value, jnp.float32),
        jax.jit(summed) if jitted else summed,
        jax.block_until_ready,
    )


WAYS: dict[str, tuple[Callable[[], Way], dict[str, str]]] = {
    "CuPy": (_cupy, {}),
    "JAX": (lambda: _jax(jitted=False), {}),
    "JAX, HVD_JAX=stream": (lambda: _jax(jitted=False), {"HVD_JAX": "stream"}),
    "JAX, jitted": (lambda: _jax(jitted=True), {}),
    "JAX, jitted, HVD_JAX=stream": (lambda: _jax(jitted=True), {"HVD_JAX": "stream"}),
}


def rank_main(name: str) -> None:
    """Sum on a rank."""
    make, _ = WAYS[name]
    way = make()
    first = way.summed(way.full(way.hvd.rank() + 1.0))
    way.wait(first)
    want = float(sum(range(way.hvd.size() + 1)))
    right = float(first.min()) == float(first.max()) == want
    x, taken = way.full(0.0), []
    for _ in range(ROUNDS):
        way.wait(x)
        way.hvd.barrier()
        began = time.perf_counter()
        way.wait(way.summed(x))
        taken.append(time.perf_counter() - began)
    print(f"{MARK}{right}:{1e3 * statistics.median(taken[2:])}", flush=True)
    way.hvd.shutdown()


def row(name: str) -> str:
    """Run the sums on ranks; return the row."""
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **WAYS[name][1]}
    lines = output_of(RANKS, ["--gpus", "0"], [__file__, "rank", name], env, GIVEN_S).splitlines()
    results = [line.partition(MARK)[2].split(":") for line in lines if MARK in line]
    if len(results) != RANKS:
        return f"| {name} | FAILED: {len(results)} of {RANKS} ranks came to their end | |"
    right = all(result[0] == "True" for result in results)
    return f"| {name} | {'right' if right else 'WRONG'} | {max(float(result[1]) for result in results):.3g} |"


def main() -> int:
    """Print the table; return the exit status."""
    print(
        f"\nSums of {SIZE >> 20} MiB, {RANKS} ranks on one GPU:\n\n| arrays of | sums | ms |\n| --- | --- | --- |",
        flush=True,
    )
    failed = 0
    for name in WAYS:
        text = row(name)
        failed += "| right |" not in text
        print(text, flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(sys.argv[2])
    else:
        sys.exit(main())
