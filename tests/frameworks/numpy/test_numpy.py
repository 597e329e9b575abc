"""The same collectives on NumPy arrays, without torch."""

from __future__ import annotations

import numpy as np
import pytest
from hvdtest.arrays import SHAPES, total, values
from hvdtest.exact import raises
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp

SUMMED = (
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
CARRIED = (*SUMMED, "bool", "uint32", "uint64")


def equal(got: np.ndarray, want: np.ndarray, what: object = "") -> None:
    assert isinstance(got, np.ndarray), what
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    np.testing.assert_array_equal(got, want, err_msg=str(what))


def arrays() -> None:
    from hvd_kernel.core import ops, session

    rank, size = session.rank(), session.size()
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
    raises(ValueError, "complex64 is not supported by Min", ops.allreduce, np.ones(3, np.complex64), op=ops.Min)
    raises(ValueError, "bool is not supported by Average", ops.allreduce, np.ones(3, np.bool_))
    raises(ValueError, "datetime64[s] is not supported", ops.allreduce, np.ones(3, "M8[s]"))
    raises(ValueError, ">f4 is not supported", ops.allreduce, np.ones(3, ">f4"))
    raises(ValueError, "uint32 is not supported by Sum: cast it to int64", ops.allreduce, np.ones(3, "u4"), op=ops.Sum)
    raises(
        ValueError, "send array.view('int64') and view the result as datetime64[s]", ops.allgather, np.ones(3, "M8[s]")
    )
    raises(ValueError, "send its fields one by one", ops.allgather, np.ones(3, [("a", "i4"), ("b", "f4")]))
    raises(ValueError, "use broadcast_object or allgather_object", ops.allgather, np.array(["text"]))


def more_arrays() -> None:
    from hvd_kernel.core import ops, session, shared_memory

    rank, size = session.rank(), session.size()
    parts = [values((2 * size + 1, 3), r).astype("float64") for r in range(size)]
    whole = np.sum(parts, axis=0)
    share = np.array_split(whole, size)[rank]
    equal(ops.reducescatter(parts[rank], "np.scatter", ops.Sum), share)
    equal(ops.reducescatter(parts[rank], "np.mean"), share / size)
    pair = ops.grouped_reducescatter([parts[rank], parts[rank].astype("int32")], "np.scatters", ops.Sum)
    equal(pair[0], share)
    equal(pair[1], share.astype("int32"))
    reduced = ops.grouped_allreduce([parts[rank], parts[rank][:1].astype("float32")], "np.group", ops.Max)
    equal(reduced[0], np.max(parts, axis=0))
    equal(reduced[1], np.max(parts, axis=0)[:1].astype("float32"))
    gathered = ops.grouped_allgather([parts[rank][:rank], parts[rank][:1] > 3], "np.gathers")
    equal(gathered[0], np.concatenate([p[:r] for r, p in enumerate(parts)]))
    equal(gathered[1], np.concatenate([p[:1] > 3 for p in parts]))
    got, rows = ops.alltoall(parts[rank], [r % 2 + 1 for r in range(size)], "np.all")
    begin = sum(r % 2 + 1 for r in range(rank))
    equal(got, np.concatenate([p[begin : begin + rank % 2 + 1] for p in parts]))
    equal(rows, np.full(size, rank % 2 + 1, np.int32))
    equal(ops.alltoall(parts[rank][: 2 * size], name="np.even")[0], np.concatenate([p[2 * rank :][:2] for p in parts]))
    for empty in (ops.grouped_allreduce, ops.grouped_allgather, ops.grouped_reducescatter):
        raises(ValueError, "needs at least one tensor", empty, [])
    if size == 1 or session.engine().transport_to((rank + 1) % size) == "shm":
        mine = shared_memory.shared_empty((4, 3), "float64")
        mine[...] = parts[rank][:1]
        assert mine.flags.writeable
        equal(ops.allreduce(mine, "np.shared", ops.Sum), np.broadcast_to(whole[:1], (4, 3)))
    equal(ops.allreduce(parts[rank], "np.after", ops.Sum), whole)


def test_more_arrays(ranks: RankPool) -> None:
    ranks.run(more_arrays)


def test_arrays(ranks: RankPool) -> None:
    ranks.run(arrays)
