"""Value functions of Keras's API: allreduce, allgather, broadcast, reducescatter of NumPy values on two ranks."""

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
