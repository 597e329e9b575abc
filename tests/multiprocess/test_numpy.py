"""The same collectives on NumPy arrays, without torch."""

from __future__ import annotations

import numpy as np
import pytest
from hvdtest.arrays import SHAPES, total, values
from hvdtest.exact import raises
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp

SUMMED = ("uint8", "int32", "int64", "float16", "float32", "float64")
CARRIED = (*SUMMED, "int8", "int16", "uint16", "bool")


def equal(got: np.ndarray, want: np.ndarray, what: object = "") -> None:
    assert isinstance(got, np.ndarray), what
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    np.testing.assert_array_equal(got, want, err_msg=str(what))


def arrays() -> None:
    from hvd_kernel import _session, ops

    rank, size = _session.rank(), _session.size()
    for dtype in SUMMED:
        for shape in SHAPES:
            mine, want = values(shape, rank).astype(dtype), total(shape, size).astype(dtype)
            equal(ops.allreduce(mine, f"np.{dtype}{shape}", ops.Sum), want, (dtype, shape))
            equal(mine, values(shape, rank).astype(dtype), "the input")
    for dtype in CARRIED:
        parts = [values((r + 1, 3), r).astype(dtype) for r in range(size)]
        equal(ops.allgather(parts[rank], f"np.{dtype}"), np.concatenate(parts), dtype)
        equal(ops.broadcast(parts[rank][:1], size - 1, f"np.{dtype}"), parts[-1][:1], dtype)
    base = values((6, 8), rank).astype("float32")
    equal(ops.allreduce(base.T[::2], "np.strided", ops.Sum), total((6, 8), size).astype("float32").T[::2])
    equal(ops.allreduce(base, "np.average"), total((6, 8), size).astype("float32") / np.float32(size))
    raises(ValueError, "complex64 is not supported", ops.allreduce, np.ones(3, np.complex64))
    raises(ValueError, "int8 is not supported by allreduce", ops.allreduce, np.ones(3, np.int8))
    raises(ValueError, ">f4 is not supported", ops.allreduce, np.ones(3, ">f4"))


def test_arrays(ranks: RankPool) -> None:
    ranks.run(arrays)
