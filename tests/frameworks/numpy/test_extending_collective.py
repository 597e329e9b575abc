"""The collective of docs/extending.md, on real ranks."""

from __future__ import annotations

import pytest
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp


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


def test_gather_gives_the_root_all_rows_and_the_others_none(ranks: RankPool) -> None:
    ranks.run(gathers)
