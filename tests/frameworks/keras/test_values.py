"""Values that Keras's functions take beyond the table of frameworks/conformance: numbers, tensors, 64 bits."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = pytest.mark.nightly


def check_values() -> list[Any]:
    import numpy as np
    from frameworks.keras import small

    from hvd_kernel.keras.flavour import is_tensor

    hvd = small.hvd()
    mine = np.array([1.0, 2.0], np.float32) + hvd.rank()
    tensors = [
        hvd.allreduce(hvd.allreduce(mine)),
        hvd.allreduce(float(hvd.rank())),
        hvd.allreduce(2 * hvd.rank(), average=False),
    ]
    assert all(is_tensor(each) for each in tensors)
    wide = hvd.allgather(np.array([2**40 + hvd.rank()])), hvd.allreduce(np.array([[1.0, 3.0]]) * (1 + 2 * hvd.rank()))
    return [[np.asarray(each).tolist(), np.asarray(each).dtype.name] for each in [*tensors, *wide]]


def test_numbers_tensors_and_wide_types(keras_ranks: RankPool) -> None:
    want = [
        [[1.5, 2.5], "float32"],
        [0.5, "float32"],
        [2, "int32"],
        [[2**40, 2**40 + 1], "int64"],
        [[[2.0, 6.0]], "float64"],
    ]
    assert keras_ranks.run(check_values) == [want, want]
