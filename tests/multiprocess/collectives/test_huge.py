"""More than 2^31 elements and 4 GiB: numbers that do not fit 32 bits."""

from __future__ import annotations

import psutil
import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.mp, pytest.mark.nightly]

ELEMENTS = 2**31 + 17
NEEDED = 2 * ELEMENTS + (2 << 30)  # two ranks, in place, and what everything else takes


def huge(elements: int) -> list[int]:
    import torch

    import hvd_kernel.torch as hvd

    hvd.init()
    rank = hvd.rank()
    x = torch.full((elements,), rank + 1, dtype=torch.int8)
    x[2**31 - 1] = 7 + rank
    x[2**31] = 20 + rank
    x[-1] = 40 + rank
    hvd.allreduce_(x, name="huge", op=hvd.Sum)
    found = [int(x[i]) for i in (0, 2**30, 2**31 - 1, 2**31, elements - 1)]
    wrong = sum(int((part != 3).sum()) for part in x.split(1 << 27))
    hvd.shutdown()
    return [*found, wrong]


@pytest.mark.timeout(300)
def test_over_two_to_the_31() -> None:
    free = psutil.virtual_memory().available
    if free < NEEDED:
        pytest.skip(f"needs {NEEDED >> 20} MiB of memory, {free >> 20} are free")
    with RankPool(2) as pool:
        assert pool.run(huge, ELEMENTS, timeout=250) == [[3, 3, 15, 41, 81, 3]] * 2
