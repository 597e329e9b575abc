"""Value functions of Keras's API: allreduce, allgather, broadcast, reducescatter of values on two ranks give tensors."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = pytest.mark.nightly


def check_values() -> list[Any]:
    import numpy as np
    from frameworks.keras import small

    hvd = small.hvd()
    mine = np.array([[1.0, 2.0], [3.0, 4.0]]) * (1 + 2 * hvd.rank())  # 1 and 3 times
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(mine, average=True, op=hvd.Sum)
    results = [
        hvd.allreduce(mine, "v.average"),
        hvd.allreduce(mine, "v.not", average=False),
        hvd.allreduce(mine, "v.max", op=hvd.Max),
        hvd.allreduce(mine, "v.scaled", op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        hvd.allreduce(1.0 + hvd.rank(), "v.number"),
        hvd.allgather(mine[: hvd.rank() + 1], "v.rows"),
        hvd.broadcast(mine, 1, "v.root"),
        hvd.reducescatter(mine, "v.share"),
        hvd.reducescatter(mine, "v.sum", op=hvd.Sum),
    ]
    return [np.asarray(each).tolist() for each in results]


def check_tensors() -> list[Any]:
    import numpy as np
    from frameworks.keras import small

    from hvd_kernel.keras.flavour import BACKEND, is_tensor

    hvd = small.hvd()
    mine = np.array([1.0, 2.0], np.float32) + hvd.rank()
    tensors = [
        hvd.allreduce(mine),
        hvd.allgather(mine),
        hvd.broadcast(mine, 1),
        hvd.reducescatter(mine),
        hvd.allreduce(hvd.allreduce(mine)),
        hvd.allreduce(float(hvd.rank())),
        hvd.allreduce(2 * hvd.rank(), average=False),
    ]
    assert all(is_tensor(each) for each in tensors)
    if BACKEND != "jax":
        assert [type(each.numpy()) for each in tensors[:4]] == [np.ndarray] * 4
    wide = hvd.allgather(np.array([2**40 + hvd.rank()]))
    return [[np.asarray(each).tolist(), np.asarray(each).dtype.name] for each in [*tensors, wide]]


def test_values_are_tensors_of_the_backend(keras_ranks: RankPool) -> None:
    want = [
        [[1.5, 2.5], "float32"],
        [[1.0, 2.0, 2.0, 3.0], "float32"],
        [[2.0, 3.0], "float32"],
        [[], "float32"],
        [[1.5, 2.5], "float32"],
        [0.5, "float32"],
        [2, "int32"],
        [[2**40, 2**40 + 1], "int64"],
    ]
    for rank, results in enumerate(keras_ranks.run(check_tensors)):
        want[3] = [[[1.5], [2.5]][rank], "float32"]
        assert results == want


def check_refused() -> list[Any]:
    import numpy as np
    from frameworks.keras import small

    from hvd_kernel.keras.flavour import BACKEND

    hvd = small.hvd()
    kinds: list[Any] = [ValueError]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        kinds.append(tf.errors.InvalidArgumentError)
    unknown = hvd.ProcessSet([0])
    calls = [
        lambda: hvd.allreduce(np.ones(2), process_set=unknown),
        lambda: hvd.allgather(np.ones(2), process_set=unknown),
        lambda: hvd.broadcast(np.ones(2), 0, process_set=unknown),
        lambda: hvd.reducescatter(np.ones(2), process_set=unknown),
    ]
    texts = []
    for kind in kinds:
        for call in calls:
            with pytest.raises(kind) as caught:
                call()
            texts.append(str(caught.value).partition(": ")[2])
    return sorted(set(texts))


def test_an_unknown_process_set_is_refused(keras_ranks: RankPool) -> None:
    assert keras_ranks.run(check_refused) == [["Process set provided does not exist, or has not been registered."]] * 2


def test_values_are_exact_on_each_rank(keras_ranks: RankPool) -> None:
    same = [
        [[2.0, 4.0], [6.0, 8.0]],
        [[4.0, 8.0], [12.0, 16.0]],
        [[3.0, 6.0], [9.0, 12.0]],
        [[6.0, 12.0], [18.0, 24.0]],
        1.5,
        [[1.0, 2.0], [3.0, 6.0], [9.0, 12.0]],
        [[3.0, 6.0], [9.0, 12.0]],
    ]
    shares = [[[[2.0, 4.0]], [[4.0, 8.0]]], [[[6.0, 8.0]], [[12.0, 16.0]]]]
    assert keras_ranks.run(check_values) == [[*same, *own] for own in shares]
