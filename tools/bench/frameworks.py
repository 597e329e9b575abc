"""Operations of TensorFlow's graphs and JAX's programs beside torch's blocking call and others. Prints a table.

    python tools/bench/frameworks.py [ROUNDS] [WORD...]     ways that have one of the words in their names; all
    HOROVOD_PYTHON=... python tools/bench/frameworks.py     Horovod too, and TensorFlow 2.15 beside it: horovod_peer.py
    MPI4JAX_PYTHON=... python tools/bench/frameworks.py     mpi4jax too: mpi4jax_peer.py

Two ranks for each way, all alive at once; in every round each way takes one sample of each size, in turn, so that what the
machine does besides hits all alike. TensorFlow and JAX come from tests/frameworks/environments, tf221.txt and jaxnew.txt.

Terms.
  way     how two processes make a sum: one of WAYS
  chain   operations of which each takes the last one's result: what one costs is the slope between a short and a long chain
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tests"), str(Path(__file__).resolve().parent)]

import horovod_peer
import mpi4jax_peer
from hvdtest.environments import Ranks, environment, quiet
from hvdtest.launch import RankPool, free_port

LAYERS, STEPS = 8, 5
SIZES = {"4 KiB": (4 << 10, 20, 120, 20), "64 MiB": (64 << 20, 1, 5, 1)}  # bytes, short chain, long chain, repetitions


def torch_call(size: int, short: int, long: int, times: int) -> list[float]:
    """Call torch's blocking operation, in place, under one name."""
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    x = torch.zeros(size // 4)

    def chain(length: int) -> None:
        for _ in range(length):
            hvd.allreduce_(x, op=hvd.Sum, name="bench")

    return _slope(chain, short, long, times)


def torch_handle(size: int, short: int, long: int, times: int) -> list[float]:
    """Start torch's operation, then wait for its handle, as for gradients."""
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    x = torch.zeros(size // 4)

    def chain(length: int) -> None:
        for _ in range(length):
            hvd.synchronize(hvd.allreduce_async_(x, op=hvd.Sum, name="bench"))

    return _slope(chain, short, long, times)


def graph(size: int, short: int, long: int, times: int) -> list[float]:
    """Call ours in a tf.function."""
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    return _traced(lambda x: hvd.allreduce(x, op=hvd.Sum), tf.zeros([size // 4]), short, long, times)


def eager(size: int, short: int, long: int, times: int) -> list[float]:
    """Call ours eagerly."""
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    x = tf.zeros([size // 4])

    def chain(length: int) -> None:
        for _ in range(length):
            hvd.allreduce(x, op=hvd.Sum)

    return _slope(chain, short, long, times)


def horovod_graph(size: int, short: int, long: int, times: int) -> list[float]:
    """Call Horovod's operation in a tf.function."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    return _traced(lambda x: hvd.allreduce(x, op=hvd.Sum), tf.zeros([size // 4]), short, long, times)


def mirrored(size: int, short: int, long: int, times: int) -> list[float]:
    """Call the strategy's sum over its gRPC ring, in a tf.function."""
    import tensorflow as tf

    strategy = _strategy()

    def reduced(x: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)

    def traced(length: int) -> Any:
        def all_of(x: Any) -> Any:
            for _ in range(length):
                x = reduced(tf.identity(x))  # on its device: the strategy asks for it
            return tf.reduce_sum(x[:1])

        return tf.function(lambda x: strategy.run(all_of, (x,)))

    x, functions = tf.zeros([size // 4]), {length: traced(length) for length in (short, long)}
    return _slope(lambda length: functions[length](x).numpy(), short, long, times)


def jitted(size: int, short: int, long: int, times: int) -> list[float]:
    """Call ours in a jitted program."""
    import hvd_kernel.jax as hvd

    hvd.init()
    return _compiled(lambda x: hvd.allreduce(x, hvd.Sum), size, short, long, times)


def mpi4jax_jit(size: int, short: int, long: int, times: int) -> list[float]:
    """Call mpi4jax's operation in a jitted program."""
    import mpi4jax
    from mpi4py import MPI

    return _compiled(lambda x: mpi4jax.allreduce(x, op=MPI.SUM), size, short, long, times)


def outside(size: int, short: int, long: int, times: int) -> list[float]:
    """Call ours eagerly, outside of XLA."""
    import jax.numpy as jnp

    import hvd_kernel.jax as hvd

    hvd.init()
    x = jnp.zeros(size // 4)

    def chain(length: int) -> None:
        for _ in range(length):
            hvd.allreduce(x, hvd.Sum, name="bench")

    return _slope(chain, short, long, times)


def _compiled(operation: Any, size: int, short: int, long: int, times: int) -> list[float]:
    import jax
    import jax.numpy as jnp

    if size not in _kept:

        def program(length: int) -> Any:
            def all_of(x: Any) -> Any:
                for _ in range(length):
                    x = operation(x)
                return x[:1]

            return jax.jit(all_of)

        _kept[size] = {length: program(length) for length in (short, long)}
    x = jnp.zeros(size // 4)
    return _slope(lambda length: _kept[size][length](x).block_until_ready(), short, long, times)


def _traced(operation: Any, x: Any, short: int, long: int, times: int) -> list[float]:
    import tensorflow as tf

    key = (short, long, int(tf.size(x)))
    if key not in _kept:

        def traced(length: int) -> Any:
            def all_of(x: Any) -> Any:
                x = x + 1.0  # made here: an argument may not be written to
                for _ in range(length):
                    x = operation(x)
                return tf.reduce_sum(x[:1])

            return tf.function(all_of)

        _kept[key] = {length: traced(length) for length in (short, long)}
    return _slope(lambda length: _kept[key][length](x).numpy(), short, long, times)


_kept: dict[Any, Any] = {}


def _strategy() -> Any:
    import tensorflow as tf

    if "strategy" not in _kept:
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        _kept["strategy"] = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return _kept["strategy"]


def _slope(chain: Any, short: int, long: int, times: int) -> list[float]:
    """Return the microseconds of one operation, and those that this process's threads computed."""
    import time

    clocks = time.perf_counter, time.process_time
    spent = {short: [0.0, 0.0], long: [0.0, 0.0]}
    chain(short), chain(long)
    for length in (short, long):
        for _ in range(times):
            begin = [clock() for clock in clocks]
            chain(length)
            spent[length] = [
                total + clock() - at for total, clock, at in zip(spent[length], clocks, begin, strict=True)
            ]
    return [
        1e6 * (more - less) / (times * (long - short)) for more, less in zip(spent[long], spent[short], strict=True)
    ]


def counted(size: int) -> dict[str, int]:
    """Return the memory that one operation on a tensor of the graph costs; its result is its input, so nothing is copied."""
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.library import counters

    hvd.init()
    function = tf.function(lambda x: hvd.allreduce(x + 1.0, op=hvd.Sum)[:1])
    x = tf.zeros([size // 4])
    function(x)
    before = counters()
    function(x).numpy()
    return {name: number - before[name] for name, number in counters().items()}


def recorded(path: str, layers: int, wide: int) -> None:
    """Run some steps of a stack of layers under a timeline."""
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    weights = [tf.Variable(tf.random.stateless_normal([wide, wide], [7, n]) / wide**0.5) for n in range(layers)]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for weight in weights:
                x = x @ weight
            loss = tf.reduce_sum(x)
        return [tf.reduce_sum(gradient) for gradient in hvd.DistributedGradientTape(tape).gradient(loss, weights)]

    x = tf.ones([wide, wide])
    step(x)
    hvd.start_timeline(path)
    for _ in range(STEPS):
        step(x)
    hvd.stop_timeline()


def overlap(ranks: RankPool | mpi4jax_peer.Peer) -> str:
    """Return how many of a step's gradients were reduced on all ranks before the last one was ready on some rank."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.json")
        ranks.run(recorded, str(path), LAYERS, 512)
        events = json.loads(path.read_text())
    rows = {e["pid"] for e in events if e.get("name") == "process_name" and ".grad_" in e["args"]["name"]}
    ready = {row: [e["ts"] for e in events if e.get("pid") == row and e["ph"] == "X"] for row in rows}
    done = {
        row: [e["ts"] for e in events if e.get("pid") == row and e["ph"] == "E" and "dtype" in e["args"]]
        for row in rows
    }
    early = []
    for step in range(STEPS):
        last = max(ready[row][2 * step + 1] for row in rows)
        early.append(sum(done[row][step] < last for row in rows))
    return f"{statistics.median(early):g} of {len(rows)}"


WAYS = {
    "torch, blocking": torch_call,
    "torch, handle": torch_handle,
    "TensorFlow, graph": graph,
    "TensorFlow, eager": eager,
    "TensorFlow 2.15, graph": graph,
    "Horovod, graph": horovod_graph,
    "MultiWorkerMirroredStrategy": mirrored,
    "JAX, jit": jitted,
    "JAX, outside": outside,
    "mpi4jax, jit": mpi4jax_jit,
}


def _cluster(rank: int, size: int, _port: int) -> dict[str, str]:
    workers = [f"127.0.0.1:{port}" for port in _PORTS[:size]]
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})}


_PORTS = [free_port(), free_port()]


def main() -> None:
    """Measure in turn; print medians of the slower rank's samples, and the ratio to the blocking call of the same round."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    first = next(iter(WAYS))
    chosen = [way for way in WAYS if way == first or not sys.argv[2:] or any(word in way for word in sys.argv[2:])]
    ways = [way for way in chosen if _NEEDS.get(_pool_of(way), "none")]
    sys.stdout.write(
        "| size | way | median, us | less the blocking call | of the blocking call | of a processor, us |\n"
        "|---|---|---|---|---|---|\n"
    )
    with ExitStack() as stack:
        opened: dict[str, RankPool | mpi4jax_peer.Peer] = {}
        for way in ways:
            if _pool_of(way) not in opened:
                opened[_pool_of(way)] = stack.enter_context(_POOLS[_pool_of(way)]())
        for name, size in SIZES.items():
            walls_by_way: dict[str, list[list[float]]] = {way: [] for way in ways}
            for _ in range(rounds + 1):  # the first one traces, and counts for nothing
                for way in ways:
                    walls_by_way[way].append(max(opened[_pool_of(way)].run(WAYS[way], *size)))
            _print(name, {way: samples[1:] for way, samples in walls_by_way.items()})
        if tensorflow := opened.get("TensorFlow"):
            counts = tensorflow.run(counted, SIZES["64 MiB"][0])[0]
            sys.stdout.write(
                f"64 MiB in a graph: {counts['calls']} operation, {counts['forwarded']} result in its input\n"
            )
            sys.stdout.write(f"gradients reduced before the last one is ready: {overlap(tensorflow)}\n")


def _pool_of(way: str) -> str:
    return way.partition(",")[0]


_NEEDS = {"TensorFlow 2.15": horovod_peer.PYTHON, "Horovod": horovod_peer.PYTHON, "mpi4jax": mpi4jax_peer.PYTHON}
_POOLS: dict[str, Callable[[], AbstractContextManager[RankPool | mpi4jax_peer.Peer]]] = {
    "torch": lambda: RankPool(2),
    "TensorFlow": lambda: Ranks(environment("tf221"), 2, HOROVOD_TIMELINE="DYNAMIC"),
    "TensorFlow 2.15": lambda: Ranks(Path(horovod_peer.PYTHON), 2),
    "Horovod": horovod_peer.ranks,
    "MultiWorkerMirroredStrategy": lambda: RankPool(2, variables=_cluster, python=environment("tf221"), **quiet()),
    "JAX": lambda: Ranks(environment("jaxnew"), 2),
    "mpi4jax": mpi4jax_peer.ranks,
}


def _print(size: str, walls_by_way: dict[str, list[list[float]]]) -> None:
    first = [wall for wall, _ in walls_by_way[next(iter(WAYS))]]
    for way, samples in walls_by_way.items():
        walls, computed = zip(*samples, strict=True)
        ratio = statistics.median(wall / other for wall, other in zip(walls, first, strict=True))
        more = statistics.median(wall - other for wall, other in zip(walls, first, strict=True))
        median, processor = statistics.median(walls), statistics.median(computed)
        sys.stdout.write(f"| {size} | {way} | {median:.1f} | {more:+.1f} | {ratio:.2f} | {processor:.1f} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
