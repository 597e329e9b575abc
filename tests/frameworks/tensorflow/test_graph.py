"""TensorFlow operations in graphs: functions, sessions, loops, other processes; nothing folded, merged, mixed or stuck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.environments import Ranks, environment, output_of
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def averages() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    function = tf.function(hvd.allreduce)
    mine = hvd.rank() + 1.0
    with tf.Graph().as_default():
        given = tf.compat.v1.placeholder(tf.float32, [])
        reduced = hvd.allreduce(given)
        with tf.compat.v1.Session() as session:
            in_session = [session.run(reduced, {given: mine}), session.run(reduced, {given: 2 * mine})]
    return [float(each) for each in (function(tf.constant(mine)), function(tf.constant(2 * mine)), *in_session)]


def test_average_in_functions_and_sessions(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(averages) == [[1.5, 3.0, 1.5, 3.0]] * 2


def shapes() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce, _grouped_allreduce, _reducescatter

    hvd.init()
    found: dict[str, Any] = {}

    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec(None)])
    def traced(rows: Any, anything: Any) -> Any:
        made = {
            "allreduce": _allreduce(rows),
            "group": _grouped_allreduce([anything, rows])[1],
            "allgather": hvd.allgather(rows),
            "anything": hvd.allgather(anything),
            "broadcast": hvd.broadcast(rows, 0),
            "received": hvd.alltoall(rows, splits=[1, 1])[1],
            "reducescatter": _reducescatter(rows),
            "size": hvd.size_op(),
        }
        found.update({name: str(each.shape) for name, each in made.items()})
        return 0

    traced(tf.ones([2, 3]), tf.ones([2]))
    try:
        tf.function(lambda: hvd.allgather(tf.zeros([])))()
    except ValueError as error:
        found["scalar"] = "a scalar has no rows" in str(error)
    return found


def test_shapes_while_tracing(tf_ranks: RankPool) -> None:
    rows = "(None, 3)"
    want = dict.fromkeys(("allreduce", "group", "allgather", "broadcast", "reducescatter"), rows)
    want |= {"anything": "<unknown>", "received": "(None,)", "size": "()", "scalar": True}
    assert tf_ranks.run(shapes) == [want, want]


def constants() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.library import counters
    from hvd_kernel.tensorflow.mpi_ops import _allreduce, barrier

    hvd.init()

    @tf.function
    def step() -> Any:
        one = tf.constant([1.0])
        return _allreduce(one) + _allreduce(one) + tf.minimum(hvd.broadcast(one, 0), 0.0)

    @tf.function
    def meet() -> None:
        barrier()
        hvd.join()

    found = []
    for function in (step, meet):
        before = counters()["calls"]
        made = [function() for _ in range(3)]
        found.append([counters()["calls"] - before, [float(each[0]) for each in made if each is not None]])
    return found


def tickets() -> list[list[int]]:
    """How many collectives have each ticket of a graph."""
    import collections

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import barrier

    hvd.init()

    @tf.function
    def inner(x: Any) -> Any:
        return hvd.allreduce(x, name="inner")

    @tf.function
    def step(x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_positive(x)]):
            mean = hvd.allreduce(inner(x))
        total = hvd.allreduce(x) + mean
        barrier()
        return hvd.allreduce(total)

    graphs = [step.get_concrete_function(tf.constant(1.0)).graph, inner.get_concrete_function(tf.constant(1.0)).graph]
    with tf.Graph().as_default() as graph:
        tf.compat.v1.disable_control_flow_v2()
        try:
            tf.while_loop(lambda turn: turn < 3.0, lambda turn: hvd.allreduce(hvd.allreduce(turn)) + 1.0, [0.0])
        finally:
            tf.compat.v1.enable_control_flow_v2()
        hvd.allreduce(tf.constant(1.0))
    found = []
    for each in [*graphs, graph]:
        reductions = [node for node in each.get_operations() if node.type == "HvdAllreduce"]
        numbers = [(node.inputs[1].name, node.get_attr("number")) for node in reductions]
        assert len(set(numbers)) == len(numbers)
        found.append(sorted(collections.Counter(name for name, _ in numbers).values()))
    assert float(step(tf.constant(1.0))) == 2.0
    return found


def test_a_graph_has_one_ticket(tf_ranks: RankPool) -> None:
    """One after each barrier, and one for each operation in a loop of version 1."""
    for found in tf_ranks.run(tickets):
        assert found == [[1, 2], [1], [1, 1, 1]]


def test_no_operation_is_folded_merged_or_dropped(tf_ranks: RankPool) -> None:
    """Equal operations on constants, and operations with unused results, are executed in each call."""
    assert tf_ranks.run(constants) == [[[9, [4.0] * 3], [6, []]]] * 2


def opposite_order() -> list[Any]:
    import threading
    import time

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.library import counters
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    one = tf.constant([1.0])
    functions = [tf.function(lambda x, n=n: _allreduce(x * n, name=f"opposite.{n}")) for n in (1.0, 2.0)]
    for function in functions:
        function.get_concrete_function(one)
    if hvd.rank():
        functions.reverse()
    found: list[Any] = [None, None]

    def run(place: int) -> None:
        found[place] = float(functions[place](one)[0])

    begun = counters()["calls"]
    threads = [threading.Thread(target=run, args=(place,)) for place in (0, 1)]
    threads[0].start()
    while counters()["calls"] == begun:
        time.sleep(0.001)  # until the first is under way: it cannot end, the other rank begins with the other one
    threads[1].start()
    for thread in threads:
        thread.join()
    return found


def many_at_once() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()

    @tf.function
    def step(x: Any) -> Any:
        places = range(20) if hvd.rank() else reversed(range(20))
        made = {place: _allreduce(x * float(place), name=f"place.{place}") for place in places}
        return [made[place] for place in range(20)]

    return [[float(each) for each in step(tf.constant(1.0))] for _ in range(3)]


def test_opposite_order_on_one_thread() -> None:
    """A kernel that waits would hold the only thread: each rank's first operation waits for the other rank's second."""
    with Ranks(environment("tf221"), 2, interop=1) as ranks:
        assert ranks.run(opposite_order) == [[2.0, 4.0], [4.0, 2.0]]
        assert ranks.run(many_at_once) == [[[2.0 * place for place in range(20)]] * 3] * 2


def same_function_twice() -> dict[str, Any]:
    import threading

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    found: dict[str, Any] = {}

    @tf.function
    def inner(x: Any) -> Any:
        return _allreduce(x)

    @tf.function
    def outer(x: Any) -> Any:
        return inner(x) + 10.0 * inner(2.0 * x) + 100.0 * inner(3.0 * x)

    found["in one graph"] = float(outer(tf.constant(1.0)))

    @tf.function
    def loop(x: Any) -> Any:
        made = tf.TensorArray(tf.float32, 50)
        for turn in tf.range(50):
            made = made.write(turn, _allreduce(x * tf.cast(turn, tf.float32)))
        return made.stack()

    found["loop"] = loop(tf.constant(1.0)).numpy().tolist()

    @tf.function
    def branches(x: Any, which: Any) -> Any:
        return tf.cond(which, lambda: _allreduce(x), lambda: -_allreduce(x))

    found["branches"] = [float(branches(tf.constant(1.0), tf.constant(which))) for which in (True, False)]

    sums: list[float] = []
    threads = [
        threading.Thread(target=lambda: sums.extend(float(inner(tf.constant(1.0))) for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found["threads"] = [len(sums), sorted(set(sums))]
    return found


def test_one_function_in_several_places(tf_ranks: RankPool) -> None:
    """In one graph, in a loop, in branches and threads: operations of one name do not clash, and meet their like."""
    want = {
        "in one graph": 642.0,
        "loop": [2.0 * turn for turn in range(50)],
        "branches": [2.0, -2.0],
        "threads": [200, [2.0]],
    }
    assert tf_ranks.run(same_function_twice) == [want, want]


def unequal_graphs() -> list[float]:
    """Rank 0's graph has a cond more before the collective's, as a summary makes one."""
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()

    @tf.function
    def step(x: Any) -> Any:
        if hvd.rank() == 0:
            tf.cond(x > 100.0, lambda: tf.print("large"), tf.no_op, name="a_summary")
        with tf.name_scope("" if hvd.rank() else "rank_0s"):
            return tf.cond(
                hvd.size_op() > 1, lambda: _allreduce(x, name="metric", ignore_name_scope=True), lambda: x, name="more"
            )

    @tf.function
    def scoped(x: Any) -> Any:
        if hvd.rank() == 0:
            tf.cond(x > 100.0, lambda: tf.print("large"), tf.no_op, name="a_summary")
        return tf.cond(hvd.size_op() > 1, lambda: _allreduce(x, name="metric"), lambda: x, name="more")

    return [float(each(tf.constant(1.0))) for each in (step, scoped)]


def test_names_do_not_depend_on_other_operations_of_a_graph(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(unequal_graphs) == [[2.0, 2.0]] * 2


def sizes_of_now() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    traced = []

    @tf.function
    def step(x: Any) -> Any:
        traced.append(1)
        return hvd.size_op(), hvd.rank_op(), _allreduce(x, op=hvd.Average), hvd.allgather(x)

    def numbers() -> list[Any]:
        return [each.numpy().tolist() for each in step(tf.constant([hvd.rank() + 1.0]))]

    found = [numbers()]
    hvd.shutdown()
    hvd.init()
    found.append(numbers())
    return [found, len(traced)]


def test_a_traced_function_after_a_new_init(tf_ranks: RankPool) -> None:
    def of(rank: int) -> list[Any]:
        return [[2, rank, [1.5], [1.0, 2.0]]] * 2

    assert tf_ranks.run(sizes_of_now) == [[of(0), 1], [of(1), 1]]


def alone_after() -> list[Any]:
    """Run two ranks, then a job of one rank each: the earlier function gives the new result."""
    import os

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce, _reducescatter

    hvd.init()
    traced = []

    @tf.function
    def step(x: Any) -> Any:
        traced.append(1)
        return hvd.size_op(), hvd.rank_op(), _allreduce(x), hvd.allgather(x), _reducescatter(x)

    def numbers() -> list[Any]:
        return [each.numpy().tolist() for each in step(tf.constant([1.0, 2.0]))]

    found = [numbers()]
    hvd.shutdown()
    kept = {name: os.environ.pop(name) for name in ("HOROVOD_RANK", "HOROVOD_SIZE")}
    hvd.init()
    found.append(numbers())
    hvd.shutdown()
    os.environ.update(kept)
    return [found, len(traced)]


def test_a_traced_function_in_a_job_of_another_size() -> None:
    alone = [1, 0, [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]

    def both(rank: int) -> list[Any]:
        return [2, rank, [2.0, 4.0], [1.0, 2.0, 1.0, 2.0], [[2.0], [4.0]][rank]]

    with Ranks(environment("tf221"), 2) as ranks:
        assert ranks.run(alone_after) == [[[both(0), alone], 1], [[both(1), alone], 1]]


def compiled() -> list[str]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    inner = tf.function(_allreduce, jit_compile=True)
    texts = []
    for function in (inner, tf.function(lambda x: inner(x) * 2.0)):
        try:
            function(tf.constant(1.0))
        except ValueError as error:
            texts.append(str(error))
    assert float(tf.function(_allreduce, jit_compile=False)(tf.constant(1.0))) == 2.0
    return texts


def test_jit_compile_is_refused_with_the_remedy(tf_ranks: RankPool) -> None:
    for texts in tf_ranks.run(compiled):
        assert len(texts) == 2
        for text in texts:
            assert "hvd_kernel's Allreduce cannot be compiled by XLA" in text
            assert "jit_compile=False" in text


def mismatch_in_a_function() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.library import translated
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    step = tf.function(lambda x: _allreduce(x) * 2.0, reduce_retracing=True)
    found: list[Any] = []
    try:
        step(tf.ones([2 + hvd.rank()]))
    except tf.errors.FailedPreconditionError as error:
        meant = translated(error)
        found = [type(meant).__name__, "[2]" in str(meant), "[3]" in str(meant)]
    return [*found, step(tf.ones([1])).numpy().tolist()]


def test_mismatch_in_a_function(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(mismatch_in_a_function) == [["Mismatch", True, True, [4.0]]] * 2


SAVED = """
import sys
import tensorflow as tf
import hvd_kernel.tensorflow as hvd
hvd.init()
model = tf.saved_model.load(sys.argv[1])
assert model.step(tf.constant([1.0, 2.0])).numpy().tolist() == [2.0, 4.0]
graph = tf.compat.v1.GraphDef.FromString(open(sys.argv[1] + "/graph", "rb").read())
with tf.Graph().as_default():
    (reduced,) = tf.graph_util.import_graph_def(graph, return_elements=["reduced:0"])
    with tf.compat.v1.Session() as session:
        assert session.run(reduced).tolist() == [3.0]
"""


def save(folder: str) -> None:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    if hvd.rank():
        return
    model = tf.Module()
    model.step = tf.function(lambda x: _allreduce(x * 2.0), input_signature=[tf.TensorSpec([2])])
    tf.saved_model.save(model, folder)
    with tf.Graph().as_default() as graph:
        tf.identity(_allreduce(tf.constant([3.0])), name="reduced")
        Path(folder, "graph").write_bytes(graph.as_graph_def().SerializeToString())


def test_saved_graphs_run_in_another_process(tf_ranks: RankPool, tmp_path: Path) -> None:
    tf_ranks.run(save, str(tmp_path))
    output_of(environment("tf221"), SAVED, str(tmp_path))


def dies_within() -> list[Any]:
    """Rank 1 ends while rank 0 waits for it in a function, which has more to do after that."""
    import os
    import signal

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.errors import HorovodInternalError
    from hvd_kernel.tensorflow.library import translated
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    step = tf.function(lambda x: _allreduce(_allreduce(x, name="first"), name="second"))
    assert step(tf.ones([4])).numpy().tolist() == [4.0] * 4
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(2):  # what is under way, and what begins after that
        try:
            step(tf.ones([4]))
        except tf.errors.AbortedError as error:
            meant = translated(error)
            assert isinstance(meant, HorovodInternalError)
            kinds = [type(meant).__name__, getattr(meant, "rank", None)]
    return kinds


def test_death_of_a_rank_within_a_function() -> None:
    with Ranks(environment("tf221"), 2) as ranks:
        survivor, _ = ranks.run(dies_within, gone={1: -9})
    assert survivor == ["RankDied", 1]
