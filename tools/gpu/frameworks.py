"""Arrays of other frameworks on a GPU: sums of two ranks that share it, whether they are right and how long they take. Markdown.

Each way has ranks of its own, clients of a private MPS daemon where there is one.

    python -P tools/gpu/frameworks.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

RANKS, SIZE, ROUNDS = 2, 1 << 26, 8
GIVEN_S = 50.0
MARK = "row:"


def cupy_array() -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the module, a sum, and what waits for an array."""
    import cupy

    import hvd_kernel.numpy as hvd

    hvd.init()
    return hvd, lambda x: hvd.allreduce_(x, op=hvd.Sum), lambda _: cupy.cuda.Device().synchronize()


def _jax(*, jitted: bool) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    import jax

    import hvd_kernel.jax as hvd

    hvd.init()

    def summed(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    return hvd, jax.jit(summed) if jitted else summed, jax.block_until_ready


def ones(framework: str, value: float) -> Any:
    """Return an array on the device."""
    if framework == "cupy":
        import cupy

        return cupy.full(SIZE // 4, value, cupy.float32)
    import jax.numpy as jnp

    return jnp.full(SIZE // 4, value, jnp.float32)


WAYS: dict[str, tuple[str, Callable[[], Any], dict[str, str]]] = {
    "CuPy": ("cupy", cupy_array, {}),
    "JAX": ("jax", lambda: _jax(jitted=False), {}),
    "JAX, jitted": ("jax", lambda: _jax(jitted=True), {}),
    "JAX, jitted, HVD_JAX=stream": ("jax", lambda: _jax(jitted=True), {"HVD_JAX": "stream"}),
}


def rank_main(way: str) -> None:
    """Sum on a rank."""
    framework, make, _ = WAYS[way]
    hvd, summed, wait = make()
    first = summed(ones(framework, hvd.rank() + 1.0))
    wait(first)
    want = float(sum(range(hvd.size() + 1)))
    right = float(first.min()) == float(first.max()) == want
    x, taken = ones(framework, 0.0), []
    for _ in range(ROUNDS):
        wait(x)
        hvd.barrier()
        began = time.perf_counter()
        wait(summed(x))
        taken.append(time.perf_counter() - began)
    print(f"{MARK}{right}:{1e3 * statistics.median(taken[2:])}", flush=True)
    hvd.shutdown()


def row(way: str) -> str:
    """Have ranks sum in that way; return its row."""
    command = [sys.executable, "-P", "-m", "hvd_kernel.launch", "-np", str(RANKS), "--gpus", "0"]
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **WAYS[way][2]}
    running = subprocess.Popen(
        [*command, sys.executable, "-P", __file__, "rank", way],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    try:
        said, _ = running.communicate(timeout=GIVEN_S)
    except subprocess.TimeoutExpired:
        running.terminate()
        said, _ = running.communicate()
    found = [line.partition(MARK)[2].split(":") for line in said.splitlines() if MARK in line]
    if len(found) == RANKS:
        right = all(each[0] == "True" for each in found)
        return f"| {way} | {'right' if right else 'WRONG'} | {max(float(each[1]) for each in found):.3g} |"
    print(said[-3000:], file=sys.stderr)
    why = [line for line in said.splitlines() if "Error" in line or "hvdrun:" in line] or ["it did not end"]
    return f"| {way} | FAILED: {why[-1][:150]} | |"


def main() -> int:
    """Print the table; return the exit status."""
    print(
        f"\nSums of {SIZE >> 20} MiB, {RANKS} ranks on one GPU:\n\n| arrays of | sums | ms |\n| --- | --- | --- |",
        flush=True,
    )
    failed = 0
    for way in WAYS:
        told = row(way)
        failed += "| right |" not in told
        print(told, flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(sys.argv[2])
    else:
        sys.exit(main())
