"""NumPy arrays beyond the table of frameworks/conformance: unsupported types, shared memory, and the collective of docs/extending.md."""

from __future__ import annotations

import numpy as np
import pytest
from hvdtest.exact import raises
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp


def other_types() -> None:
    import hvd_kernel.numpy as hvd

    raises(ValueError, "datetime64[s] is not supported", hvd.allreduce, np.ones(3, "M8[s]"))
    raises(ValueError, ">f4 is not supported", hvd.allreduce, np.ones(3, ">f4"))
    remedy = "send array.view('int64') and view the result as datetime64[s]"
    raises(ValueError, remedy, hvd.allgather, np.ones(3, "M8[s]"))
    raises(ValueError, "send its fields one by one", hvd.allgather, np.ones(3, [("a", "i4"), ("b", "f4")]))
    raises(ValueError, "use broadcast_object or allgather_object", hvd.allgather, np.array(["text"]))


def test_types_without_support_in_the_core(ranks: RankPool) -> None:
    ranks.run(other_types)


def in_shared_memory() -> None:
    from hvd_kernel.core import ops, session, shared_memory

    rank, size = session.rank(), session.size()
    if size == 1 or session.engine().transport_to((rank + 1) % size) == "shm":
        mine = shared_memory.shared_empty((4, 3), "float64")
        mine[...] = np.arange(12.0).reshape(4, 3) + rank
        assert mine.flags.writeable
        want = np.arange(12.0).reshape(4, 3) * size + size * (size - 1) / 2
        np.testing.assert_array_equal(ops.allreduce(mine, "shared", ops.Sum), want, strict=True)


def test_an_array_in_shared_memory(ranks: RankPool) -> None:
    ranks.run(in_shared_memory)


def gathers() -> None:
    import numpy as np
    from hvdtest.recipes import module

    import hvd_kernel.numpy as hvd

    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        mine = np.full((rank + 1, 2), 10 * root + rank, dtype=np.int64)
        got = module("collective").gather(mine, root, f"to_{root}")
        all_rows = np.concatenate([np.full((r + 1, 2), 10 * root + r, dtype=np.int64) for r in range(size)])
        np.testing.assert_array_equal(got, all_rows if rank == root else all_rows[:0])


def test_gather_returns_all_rows_on_the_root_alone(ranks: RankPool) -> None:
    ranks.run(gathers)
