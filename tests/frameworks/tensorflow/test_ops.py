"""TensorFlow operations in eager mode: values, types, errors, gradients, memory, names and process sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import RankPool

from hvd_kernel.core.ops import SPLITS_ARE_INTEGERS

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

NUMBERS = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")


def plain(value: Any) -> Any:
    import tensorflow as tf

    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    numbers = tf.convert_to_tensor(value)
    return (tf.cast(numbers, tf.float64) if numbers.dtype == tf.bfloat16 else numbers).numpy().tolist()


def reductions() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce, _grouped_allreduce

    hvd.init()
    mine = tf.constant([1.0, 4.0]) + hvd.rank()
    third = tf.constant([1.0], tf.float64)
    return {
        "average": plain(hvd.allreduce(tf.constant(hvd.rank() + 1.0))),
        **{
            name: plain(_allreduce(mine, op=op))
            for name, op in (("sum", hvd.Sum), ("min", hvd.Min), ("max", hvd.Max), ("product", hvd.Product))
        },
        "integers": plain(_allreduce(tf.constant([1, -4]) + hvd.rank(), op=hvd.Average)),
        "bytes": plain(_allreduce(tf.constant([[200, 250], [100, 250]][hvd.rank()], tf.uint8), op=hvd.Average)),
        "scaled": plain(_allreduce(mine, prescale_factor=2.0, postscale_factor=0.5, op=hvd.Average)),
        "in double": plain(_allreduce(third, prescale_factor=1 / 3, postscale_factor=0.5)),
        "group": plain(_grouped_allreduce([mine, tf.constant(2) * hvd.rank()], op=hvd.Sum)),
        "empty": plain(_allreduce(tf.zeros([0, 3]))),
    }


def test_reductions(tf_ranks: RankPool) -> None:
    want = {
        "average": 1.5,
        "sum": [3.0, 9.0],
        "min": [1.0, 4.0],
        "max": [2.0, 5.0],
        "product": [2.0, 20.0],
        "integers": [1, -3],
        "bytes": [150, 250],
        "scaled": [1.5, 4.5],
        "in double": [1 / 3],
        "group": [[3.0, 9.0], 2],
        "empty": [],
    }
    assert tf_ranks.run(reductions) == [want, want]


def every_type(name: str) -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce, _reducescatter, grouped_allgather

    hvd.init()
    mine = tf.cast([1 + hvd.rank(), 0], name)
    moved = [
        hvd.allgather(mine),
        hvd.broadcast(mine, 1),
        hvd.alltoall(mine),
        *grouped_allgather([mine, tf.constant([hvd.rank()])]),
    ]
    made = [_allreduce(mine), _reducescatter(mine)]
    assert [each.dtype.name for each in moved + made] == [name] * 4 + ["int32"] + [name] * 2
    return plain([tf.cast(each, tf.complex128 if name.startswith("complex") else tf.float64) for each in moved + made])


@pytest.mark.parametrize("name", [*NUMBERS, "bool"])
def test_every_type(tf_ranks: RankPool, name: str) -> None:
    def ours(rank: int) -> list[Any]:
        two, three = (1.0, 1.0) if name == "bool" else (2.0, 3.0)
        moved = [[1.0, 0.0, two, 0.0], [two, 0.0], [[1.0, two], [0.0, 0.0]][rank], [1.0, 0.0, two, 0.0], [0.0, 1.0]]
        return [*moved, [three, 0.0], [[three], [0.0]][rank]]

    assert tf_ranks.run(every_type, name) == [ours(0), ours(1)]


def moved_type(name: str) -> list[Any]:
    import tensorflow as tf
    from hvdtest.exact import raises

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    mine = tf.cast([2**31 + hvd.rank(), 0], name)
    moved = [hvd.allgather(mine), hvd.broadcast(mine, 1), hvd.alltoall(mine)]
    raises(
        tf.errors.InvalidArgumentError,
        f"allreduce of {name} with op Sum is not available",
        _allreduce,
        mine,
        op=hvd.Sum,
    )
    variable = tf.Variable(mine)
    hvd.broadcast_variables([variable], 1)
    return plain([tf.cast(each, tf.float64) for each in (*moved, variable)])


@pytest.mark.parametrize("name", ["uint32", "uint64"])
def test_types_that_only_move(tf_ranks: RankPool, name: str) -> None:
    def ours(rank: int) -> list[Any]:
        one, two = 2.0**31, 2.0**31 + 1
        return [[one, 0.0, two, 0.0], [two, 0.0], [[one, two], [0.0, 0.0]][rank], [two, 0.0]]

    assert tf_ranks.run(moved_type, name) == [ours(0), ours(1)]


def complex_numbers(name: str) -> list[str]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    mine = tf.cast(tf.complex(1.0 + hvd.rank(), -1.0), name)
    return [str(plain(each)) for each in (_allreduce(mine), _allreduce(mine, op=hvd.Average), hvd.broadcast(mine, 1))]


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(tf_ranks: RankPool, name: str) -> None:
    assert tf_ranks.run(complex_numbers, name) == [["(3-2j)", "(1.5-1j)", "(2-1j)"]] * 2


def moved_rows() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _grouped_reducescatter, _reducescatter, grouped_allgather

    hvd.init()
    rank = hvd.rank()
    rows = tf.range(4) + 10 * rank
    sent = hvd.alltoall(rows, splits=[1, 2] if rank else tf.constant([3, 1], tf.int64))
    return {
        "allgather": plain(hvd.allgather(tf.fill([rank + 1, 2], rank))),
        "nothing": plain(hvd.allgather(tf.fill([2 * rank, 1], 7))),
        "group": plain(grouped_allgather([tf.fill([rank], 1.0), tf.fill([1], rank)])),
        "alltoall": plain(sent),
        "received": sent[1].dtype.name,
        "equal": plain(hvd.alltoall(rows)),
        "reducescatter": plain(_reducescatter(tf.range(5), op=hvd.Sum)),
        "reducescatters": plain(_grouped_reducescatter([tf.range(3.0), tf.ones([2, 2]) * rank], op=hvd.Average)),
    }


def test_moved_rows(tf_ranks: RankPool) -> None:
    every = {
        "allgather": [[0, 0], [1, 1], [1, 1]],
        "nothing": [[7], [7]],
        "group": [[1.0], [0, 1]],
        "received": "int32",
    }
    first = {
        "alltoall": [[0, 1, 2, 10], [3, 1]],
        "equal": [0, 1, 10, 11],
        "reducescatter": [0, 2, 4],
        "reducescatters": [[0.0, 1.0], [[0.5, 0.5]]],
    }
    second = {
        "alltoall": [[3, 11, 12], [1, 2]],
        "equal": [2, 3, 12, 13],
        "reducescatter": [6, 8],
        "reducescatters": [[2.0], [[0.5, 0.5]]],
    }
    assert tf_ranks.run(moved_rows) == [every | first, every | second]


def variables() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    mine = [tf.Variable([1.0, 2.0]), tf.Variable(3), tf.Variable(True)]
    if hvd.rank() == 0:
        mine = [tf.Variable([0.0, 0.0]), tf.Variable(0), tf.Variable(False)]
    hvd.broadcast_(mine, root_rank=1)
    last = int(hvd.join())
    hvd.barrier()
    return [plain(mine), last in {0, 1}, plain(hvd.size_op()), plain(hvd.local_size_op())]


def test_variables_join_and_sizes(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(variables) == [[[[1.0, 2.0], 3, True], True, 2, 2]] * 2


def wrong_calls() -> list[list[str]]:
    import pickle

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.library import translated
    from hvd_kernel.tensorflow.mpi_ops import _allreduce, _reducescatter

    hvd.init()
    rank = hvd.rank()
    calls = {
        "shape": lambda: _allreduce(tf.zeros([2 + rank])),
        "type": lambda: _allreduce(tf.zeros([2], [tf.float32, tf.int32][rank])),
        "root": lambda: hvd.broadcast(tf.zeros([2]), rank),
        "factor": lambda: _allreduce(tf.zeros([2]), prescale_factor=1.0 + rank),
        "splits": lambda: hvd.alltoall(tf.zeros([2]), splits=[2, 1]),
        "matrix of splits": lambda: hvd.alltoall(tf.zeros([2]), splits=[[1, 1]]),
        "number of splits": lambda: hvd.alltoall(tf.zeros([2]), splits=[2]),
        "uneven": lambda: hvd.alltoall(tf.zeros([3])),
        "splits of float32": lambda: hvd.alltoall(tf.zeros([2]), splits=tf.constant([1.5, 0.5])),
        "unknown set": lambda: _allreduce(tf.zeros([2]), process_set=hvd.ProcessSet([0])),
        "unknown set of a tape": lambda: hvd.DistributedGradientTape(
            tf.GradientTape(), process_set=hvd.ProcessSet([0])
        )._reduction([tf.zeros([2])], [tf.zeros([2])]),
        "outside": lambda: hvd.broadcast(tf.zeros([2]), 2),
        "scalar rows": lambda: hvd.allgather(tf.constant(1.0)),
        "scalar share": lambda: _reducescatter(tf.constant(1.0)),
        "bool average": lambda: _allreduce(tf.constant([True]), op=hvd.Average),
    }
    told = []
    for name, call in calls.items():
        try:
            call()
        except tf.errors.InvalidArgumentError as error:
            both = isinstance(error, ValueError) and str(pickle.loads(pickle.dumps(error))) == str(error)
            told.append([name, "ArgumentError" if both else "InvalidArgumentError", "", str(translated(error))])
        except tf.errors.OpError as error:
            meant = translated(error)
            kind = type(error).__name__
            told.append([name, kind, "" if meant is error else type(meant).__name__, str(meant)])
        assert plain(_allreduce(tf.constant([1.0]))) == [2.0], "the next operation works"
    return told


def test_wrong_calls(tf_ranks: RankPool) -> None:
    told = tf_ranks.run(wrong_calls)
    ours, alone = ["FailedPreconditionError", "Mismatch"], ["InvalidArgumentError", ""]
    argument = ["ArgumentError", ""]
    want = {
        "shape": (ours, "[3]"),
        "type": (ours, "int32"),
        "root": (ours, "1"),
        "factor": (ours, "2"),
        "splits": (alone, "Sum of splits entries is greater than the first dimension of tensor."),
        "matrix of splits": (alone, "must be a vector: the rows for each rank"),
        "number of splits": (alone, "Number of entries in splits does not equal number of workers."),
        "uneven": (alone, "not an even multiple of the number of workers"),
        "splits of float32": (argument, SPLITS_ARE_INTEGERS.format(dtype="float32")),
        "unknown set": (argument, "Allreduce: Process set provided does not exist"),
        "unknown set of a tape": (argument, "Process set provided does not exist"),
        "outside": (alone, "invalid root rank 2"),
        "scalar rows": (alone, "needs a tensor of at least one dimension; reshape it to [1]"),
        "scalar share": (alone, "Reducescatter does not support scalar inputs"),
        "bool average": (alone, "bool"),
    }
    for rank in told:
        assert {name: [error, meant] for name, error, meant, _ in rank} == {
            name: kind for name, (kind, _) in want.items()
        }
        for name, _, _, text in rank:
            assert want[name][1] in text
            assert "{{" not in text or name not in {"shape", "type", "root", "factor"}


def gradients() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import (
        _allreduce,
        _grouped_allreduce,
        _grouped_reducescatter,
        _reducescatter,
        grouped_allgather,
    )

    hvd.init()
    rank = hvd.rank()
    weight = tf.constant([[1.0], [2.0], [3.0], [4.0]]) + rank  # of the result's rows

    def of(function: Any, *given: Any) -> Any:
        """The gradients of what a function makes, times the rank's weights."""

        def step() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(given)
                made = function(*given)
                loss = sum(tf.reduce_sum(each * weight[: tf.shape(each)[0]]) for each in tf.nest.flatten(made))
            return tape.gradient(loss, given)

        eager, graph = plain(step()), plain(tf.function(step)())
        assert eager == graph
        return eager

    two, rows, four = tf.ones([2, 1]), tf.ones([rank + 1, 1]), tf.ones([4, 1])
    return {
        "sum": of(_allreduce, two),
        "average": of(lambda x: _allreduce(x, op=hvd.Average), two),
        "scaled": of(lambda x: _allreduce(x, prescale_factor=3.0), two),
        "group": of(lambda x, y: _grouped_allreduce([x, y], op=hvd.Average), two, tf.ones([2, 1])),
        "allgather": of(hvd.allgather, rows),
        "allgathers": of(lambda x, y: grouped_allgather([x, y]), rows, two),
        "broadcast": of(lambda x: hvd.broadcast(x, 1), two),
        "alltoall": of(lambda x: hvd.alltoall(x, splits=[1, 1] if rank else [0, 3])[0], four),
        "scatter": of(lambda x: _reducescatter(x, op=hvd.Sum), four),
        "scatter average": of(lambda x: _reducescatter(x, op=hvd.Average, postscale_factor=2.0), four),
        "scatters": of(lambda x, y: _grouped_reducescatter([x, y], op=hvd.Sum), four, tf.ones([4, 1])),
    }


def test_gradients_are_horovods(tf_ranks: RankPool) -> None:
    """Rank 0 weighs rows of results by 1, 2, 3, 4, rank 1 by 2, 3, 4, 5."""
    first, second = tf_ranks.run(gradients)
    summed, mean = [[3.0], [5.0]], [[1.5], [2.5]]
    shares = [[1.0], [2.0], [2.0], [3.0]]  # each rank weighs its own two rows
    both = {
        "sum": [summed],
        "average": [mean],
        "scaled": [[[9.0], [15.0]]],
        "group": [mean, mean],
        "scatter": [[[2 * row[0]] for row in shares]],
        "scatter average": [[[2 * row[0]] for row in shares]],
        "scatters": [[[2 * row[0]] for row in shares]] * 2,
    }
    gathered = [[1.5], [2.5], [3.5], [4.5]]
    assert first == both | {
        "allgather": [gathered[:1]],
        "allgathers": [gathered[:1], gathered[:2]],
        "broadcast": [[[0.0], [0.0]]],
        # Its three rows went to rank 1, where they are rows 0 to 2.
        "alltoall": [[[2.0], [3.0], [4.0], [0.0]]],
    }
    assert second == both | {
        "allgather": [gathered[1:3]],
        "allgathers": [gathered[1:3], gathered[2:]],
        "broadcast": [mean],
        # One went to rank 0, the first there, one to itself, the fourth there.
        "alltoall": [[[1.0], [5.0], [0.0], [0.0]]],
    }


def second_order() -> Any:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    hvd.init()
    x = tf.constant([2.0 + hvd.rank()])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = _allreduce(x * x * x)
        slope = inner.gradient(y, x)
    return plain([slope, outer.gradient(slope, x)])


def test_gradient_of_a_gradient(tf_ranks: RankPool) -> None:
    """3x^2 and 6x, each times the sum of two ones."""
    assert tf_ranks.run(second_order) == [[[24.0], [24.0]], [[54.0], [36.0]]]


def memory() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.library import counters
    from hvd_kernel.tensorflow.mpi_ops import _allreduce, _grouped_allreduce

    hvd.init()

    def counted(function: Any, *args: Any) -> tuple[dict[str, int], Any]:
        before = counters()
        made = plain(function(*args))
        after = counters()
        return {name: after[name] - before[name] for name in after if after[name] != before[name]}, made

    ones, variable = tf.ones([1000]), tf.Variable(tf.ones([1000]))
    made_here = tf.function(lambda x: _allreduce(x * 2.0))
    made_here(ones)
    several = tf.function(lambda x: _grouped_allreduce([x * 2.0, x * 3.0]))
    several(ones)
    found = {}
    for name, function, args in (
        ("argument", _allreduce, (ones,)),
        ("variable", tf.function(lambda: _allreduce(variable)), ()),
        ("made here", made_here, (ones,)),
        ("several", several, (ones,)),
        ("allgather", hvd.allgather, (ones,)),
        ("alltoall", hvd.alltoall, (ones,)),
    ):
        counts, made = counted(function, *args)
        found[name] = [counts, sorted(set(tf.nest.flatten(made)))]
    assert plain(ones) == plain(variable) == [1.0] * 1000, "nobody's memory was written to"
    return found


def test_nothing_is_copied_that_need_not_be(tf_ranks: RankPool) -> None:
    given = {"calls": 1, "given": 1, "returned": 1}
    want = {
        "argument": [{"calls": 1}, [2.0]],
        "variable": [{"calls": 1}, [2.0]],
        "made here": [{"calls": 1, "forwarded": 1}, [4.0]],
        "several": [{"calls": 1, "forwarded": 2}, [4.0, 6.0]],
        "allgather": [given, [1.0]],
        "alltoall": [given, [1.0]],
    }
    assert tf_ranks.run(memory) == [want, want]


def many_names() -> int:
    """TensorFlow keeps a kernel, 35 KB, for each combination of attributes: names of eager calls must be none."""
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    hvd.init()
    one = tf.constant([1.0])
    for step in range(2000):
        assert plain(_allreduce(one, name=f"warm.{step}")) == [2.0]
    before = resident()
    for step in range(4000):
        assert plain(_allreduce(one, name=f"loss.{step}")) == [2.0]
    return resident() - before


def test_names_of_eager_calls_cost_no_memory(tf_ranks: RankPool) -> None:
    assert all(grown < 40_000_000 for grown in tf_ranks.run(many_names)), "140 MB with a kernel for each"


def in_sets() -> dict[str, Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.tensorflow.mpi_ops import _allreduce, _reducescatter

    hvd.shutdown()
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    hvd.init(process_sets=sets)
    rank = hvd.rank()
    own, other = sets[rank], sets[1 - rank]
    mine = tf.constant([1.0 + rank, 2.0])
    found = {
        "ops": plain(
            [
                _allreduce(mine, process_set=own),
                hvd.allgather(mine, process_set=own),
                hvd.broadcast(mine, rank, process_set=own),
                hvd.alltoall(mine, process_set=own),
                _reducescatter(mine, process_set=own),
            ]
        ),
        "size": plain([hvd.size_op(own.process_set_id), hvd.size_op(other.process_set_id)]),
        "included": plain([hvd.process_set_included_op(each.process_set_id) for each in (own, other)]),
        "all": plain(_allreduce(mine)),
    }
    try:
        _allreduce(mine, process_set=other)
    except ValueError as error:
        found["other"] = str(error)
    try:
        hvd.size_op(77)
    except tf.errors.InvalidArgumentError as error:
        found["none"] = "there is no process set 77" in str(error)
    hvd.shutdown()
    try:
        _allreduce(mine)
    except tf.errors.FailedPreconditionError as error:
        found["down"] = "Horovod has not been initialized; use hvd.init()." in str(error)
    hvd.init()
    return found


def test_process_sets(tf_ranks: RankPool) -> None:
    for rank, found in enumerate(tf_ranks.run(in_sets)):
        assert found == {
            "ops": [[1.0 + rank, 2.0]] * 5,
            "size": [1, 1],
            "included": [1, 0],
            "all": [3.0, 4.0],
            "other": f"Allreduce: Rank {rank} is not a member of the provided process set.",
            "none": True,
            "down": True,
        }
