"""TensorFlow operations in eager mode, beyond the table of frameworks/conformance: variables, sizes, memory, names, second derivatives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def plain(value: Any) -> Any:
    import tensorflow as tf

    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    numbers = tf.convert_to_tensor(value)
    return (tf.cast(numbers, tf.float64) if numbers.dtype == tf.bfloat16 else numbers).numpy().tolist()


def variables() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    mine = [tf.Variable([1.0, 2.0]), tf.Variable(3), tf.Variable(True)]
    if hvd.rank() == 0:
        mine = [tf.Variable([0.0, 0.0]), tf.Variable(0), tf.Variable(False)]
    hvd.broadcast_(mine, root_rank=1)
    with pytest.raises(ValueError, match="Process set provided does not exist"):
        hvd.DistributedGradientTape(tf.GradientTape(), process_set=hvd.ProcessSet([0]))._reduction(
            [tf.zeros([2])], [tf.zeros([2])]
        )
    return plain(mine)


def test_several_variables_are_overwritten(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(variables) == [[[1.0, 2.0], 3, True]] * 2


def sizes() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.shutdown()
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    hvd.init(process_sets=sets)
    own, other = (each.process_set_id for each in (sets[hvd.rank()], sets[1 - hvd.rank()]))
    found = plain([hvd.size_op(), hvd.local_size_op(), hvd.size_op(own), hvd.size_op(other)])
    found += plain([hvd.process_set_included_op(each) for each in (own, other)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="there is no process set 77"):
        hvd.size_op(77)
    hvd.shutdown()
    hvd.init()
    return found


def test_sizes_of_sets(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(sizes) == [[2, 2, 1, 1, 1, 0]] * 2


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


def test_contiguous_tensors_are_not_copied(tf_ranks: RankPool) -> None:
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
