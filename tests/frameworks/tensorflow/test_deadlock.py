"""Ranks whose graphs call different operations: reported by name within a second, without false alarms for late ranks."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

SOON_S = 10.0
"""It takes about half a second; on a machine that is busy, still long before the stall check, which warns after 60 s."""

SAID = "Ranks wait for each other forever, because they request different operations: "


def told(step: Any) -> tuple[str, float]:
    """Return the error of a step, and the seconds of waiting; the engine continues to work."""
    import time

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.errors import Mismatch
    from hvd_kernel.tensorflow.library import translated

    hvd.init()
    hvd.barrier()
    begin = time.monotonic()
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        step()
    seconds = time.monotonic() - begin
    assert isinstance(translated(caught.value), Mismatch)
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="after")) == hvd.size()
    return str(caught.value), seconds


def another_name() -> tuple[str, float]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()

    @tf.function
    def step() -> Any:
        return hvd.allreduce(tf.constant(1.0), name=f"loss_{hvd.rank()}")

    return told(step)


def one_more_on_rank_0() -> tuple[str, float]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()

    @tf.function
    def step(x: Any, log: bool) -> Any:
        mean = hvd.allreduce(x, name="loss")
        return hvd.allreduce(mean, name="extra") if log else mean

    for _ in range(3):
        step(tf.constant(1.0), False)

    def steps() -> None:
        step(tf.constant(1.0), hvd.rank() == 0)
        step(tf.constant(1.0), False)

    return told(steps)


def in_functions_that_are_called() -> tuple[str, float]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()

    @tf.function
    def inner(x: Any, name: str) -> Any:
        return hvd.allreduce(x, name=name)

    @tf.function
    def step(x: Any) -> Any:
        x = inner(x, "first") + inner(x, "first")
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: inner(x, f"last_{hvd.rank()}"), lambda: x)

    return told(lambda: step(tf.constant(1.0)))


def in_a_session() -> tuple[str, float]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    with tf.Graph().as_default() as graph:
        mean = hvd.allreduce(tf.constant(1.0), name=f"v1_{hvd.rank()}")
    session = tf.compat.v1.Session(graph=graph)
    try:
        return told(lambda: session.run(mean))
    finally:
        session.close()


def a_graph_and_an_eager_operation() -> tuple[str, float]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()

    @tf.function
    def step() -> Any:
        return hvd.allreduce(tf.constant(1.0), name="in_graph")

    return told(step if hvd.rank() else lambda: hvd.allreduce(tf.constant(1.0), name="eager"))


def a_graph_and_a_barrier() -> tuple[str, float]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()

    @tf.function
    def step() -> Any:
        return hvd.allreduce(tf.constant(1.0), name="in_graph")

    return told(step if hvd.rank() == 0 else hvd.barrier)


def a_graph_and_an_object() -> tuple[str, float]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()

    @tf.function
    def step() -> Any:
        return hvd.allreduce(tf.constant(1.0), name="in_graph")

    def outside() -> None:
        try:
            hvd.broadcast_object({"epoch": 3}, name="object")
        except hvd_kernel.errors.Mismatch as error:
            raise tf.errors.FailedPreconditionError(
                None, None, f"{error} [hvd_kernel.errors.Mismatch, rank 0]"
            ) from error

    import hvd_kernel.errors

    return told(outside if hvd.rank() else step)


def a_tape_of_one_rank_only() -> tuple[str, float]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    w = tf.Variable([1.0, 2.0])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w)
        if hvd.rank():
            return hvd.allreduce(loss, name="loss")
        return hvd.DistributedGradientTape(tape).gradient(loss, [w])

    return told(step)


CASES = {
    another_name: ("loss_0", "loss_1"),
    one_more_on_rank_0: ("extra", "loss"),
    in_functions_that_are_called: ("last_0", "last_1"),
    in_a_session: ("v1_0", "v1_1"),
    a_graph_and_an_eager_operation: ("in_graph", "eager"),
    a_graph_and_a_barrier: ("in_graph", "BARRIER barrier.noname"),
    a_graph_and_an_object: ("in_graph", "object"),
    a_tape_of_one_rank_only: ("loss", "DistributedGradientTape.present"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_differing_graphs_are_reported_within_a_second(tf_ranks: RankPool, case: Any) -> None:
    found = tf_ranks.run(case, timeout=60)
    for text, _ in found:
        assert SAID in text
        assert "rank 0 for " in text
        assert "rank 1 for " in text
        assert all(name in text for name in CASES[case])
    assert max(seconds for _, seconds in found) < SOON_S


def late_ranks() -> list[Any]:
    """Each program waits long for a rank that is late: 1.5 s in a thread, a Python function, or a loop."""
    import threading
    import time

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    mine = hvd.rank() + 1.0

    @tf.function
    def of(name: str) -> Any:
        return hvd.allreduce(tf.constant(mine), name=name)

    def threads() -> list[float]:
        """Two functions, begun by two threads, in opposite order."""
        results: dict[str, float] = {}

        def run(name: str, seconds: float) -> None:
            time.sleep(seconds)
            results[name] = float(of(name))

        late = [0.0, 1.5] if hvd.rank() else [1.5, 0.0]
        several = [threading.Thread(target=run, args=each) for each in zip(("x", "y"), late, strict=True)]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()
        return [results["x"], results["y"]]

    def main_and_timer() -> list[float]:
        """The main thread waits for what a timer will start on the other rank."""
        results: dict[str, float] = {}

        def later() -> None:
            results["x"] = float(of("t1" if hvd.rank() else "t0"))

        timer = threading.Timer(1.5, later)
        timer.start()
        own = float(of("t0" if hvd.rank() else "t1"))
        timer.join()
        return [own, results["x"]]

    @tf.function
    def branches() -> Any:
        """Two independent operations; on each rank another one is late, in Python."""
        names = ["a", "b"] if hvd.rank() else ["b", "a"]
        late = tf.py_function(lambda: time.sleep(1.5) or 1.0, [], tf.float32)
        first = hvd.allreduce(tf.constant(mine), name=names[0])
        second = hvd.allreduce(late * mine, name=names[1])
        return first, second

    @tf.function
    def computes(x: Any) -> Any:
        """The same, in TensorFlow."""
        names = ["c", "d"] if hvd.rank() else ["d", "c"]
        first = hvd.allreduce(tf.constant(mine), name=names[0])
        product = x
        for _ in tf.range(40):
            product = tf.matmul(product, x) / 1000.0
        second = hvd.allreduce(mine + 0.0 * tf.reduce_sum(product), name=names[1])
        return first, second

    @tf.function
    def loop() -> Any:
        """One rank is three turns ahead of an operation that needs none of them."""
        total = tf.constant(0.0)
        for turn in tf.range(4):
            total += hvd.allreduce(tf.constant(mine), name="turn")
            if hvd.rank():
                tf.py_function(lambda: time.sleep(0.5), [], [])
            total += 0.0 * tf.cast(turn, tf.float32)
        return total

    if hvd.rank():
        time.sleep(1.5)
    return [
        float(of("one")),
        threads(),
        main_and_timer(),
        [float(each) for each in branches()],
        [float(each) for each in computes(tf.ones([1000, 1000]))],
        float(loop()),
    ]


def test_late_ranks_are_awaited(tf_ranks: RankPool) -> None:
    for found in tf_ranks.run(late_ranks, timeout=120):
        assert found == [1.5, [1.5, 1.5], [1.5, 1.5], [1.5, 1.5], [1.5, 1.5], 6.0]


def counted() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.blocked import operations

    hvd.init()
    one = tf.constant(1.0)

    @tf.function
    def inner(x: Any) -> Any:
        return hvd.allreduce(x, name="inner")

    def several() -> Any:
        hvd.barrier()
        rows = hvd.allgather(tf.reshape(inner(inner(one)), [1]), name="scope/rows")
        return tf.cond(rows[0] > 0.0, lambda: hvd.allreduce(one, name="yes"), lambda: inner(one))

    def nothing() -> Any:
        for _ in tf.range(hvd.size_op()):
            tf.print(hvd.rank_op())

    def in_a_loop() -> Any:
        for _ in tf.range(3):
            inner(one)

    def python() -> Any:
        return tf.py_function(lambda: 1.0, [], tf.float32)

    def joins() -> Any:
        return hvd.join()

    functions = [several, nothing, in_a_loop, python, joins]
    found = [operations(tf.function(each).get_concrete_function().graph.as_graph_def()) for each in functions]
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph):
        tf.compat.v1.disable_control_flow_v2()
        try:
            tf.while_loop(lambda turn: turn < 3.0, lambda turn: hvd.allreduce(turn, name="turn") + 1.0, [0.0])
        finally:
            tf.compat.v1.enable_control_flow_v2()
        found.append(operations(graph.as_graph_def()))
    return [each and dict(each) for each in found]


def test_operations_that_a_graph_may_request(tf_ranks: RankPool) -> None:
    several = {"barrier.noname": 1, "inner": 3, "rows": 1, "yes": 1}
    for found in tf_ranks.run(counted, timeout=60):
        assert found == [several, {}, None, None, None, None]
