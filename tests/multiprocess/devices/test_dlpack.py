"""Arrays of any library on a GPU, by DLPack: to the core where they lie, and back, in the order of the library's stream."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest import fake_cuda_driver
from hvdtest.launch import RankPool

pytestmark = [
    pytest.mark.mp,
    pytest.mark.skipif(bool(fake_cuda_driver.why_not()), reason=fake_cuda_driver.why_not()),
    pytest.mark.nightly,
]


def collectives() -> dict[str, Any]:
    """Run every collective; return the results and their memory."""
    import numpy as np
    from hvdtest import fake_array as xp

    import hvd_kernel.numpy as hvd
    from hvd_kernel.core import session

    xp.install()
    hvd.init()
    rank = hvd.rank()
    x = xp.array(np.arange(4, dtype=np.float32) + rank)
    total = hvd.allreduce(x, name="sum", op=hvd.Sum)
    assert type(total) is xp.Array
    assert total.address != x.address
    assert 1 in xp.asked  # DLPack's number of the default stream
    found = {"sum": total.on_host().tolist(), "input": x.on_host().tolist()}
    y = xp.array(np.full(3, rank + 1, np.int64))
    assert hvd.allreduce_(y, op=hvd.Max) is y
    assert hvd.broadcast_(x, root_rank=1) is x
    one, two = hvd.grouped_allreduce([xp.array([1.0]), xp.array([2.0, rank])], op=hvd.Sum)
    gathered = hvd.allgather(xp.array(np.full((rank + 1, 2), rank, np.int32)))
    rows, counts = hvd.alltoall(xp.array([10 * rank, 10 * rank + 1]))
    assert type(counts) is np.ndarray
    strided = hvd.allreduce(xp.array(np.arange(6))[::2], op=hvd.Sum)
    found |= {
        "strided": strided.on_host().tolist(),
        "in place": y.on_host().tolist(),
        "root's": x.on_host().tolist(),
        "group": [one.on_host().tolist(), two.on_host().tolist()],
        "gathered": gathered.on_host().tolist(),
        "exchanged": [rows.on_host().tolist(), counts.tolist()],
        "scattered": hvd.reducescatter(xp.array([[1.0], [2.0], [3.0]]), op=hvd.Sum).on_host().tolist(),
        "copied": hvd.broadcast(xp.array([rank]), root_rank=0).on_host().tolist(),
    }
    assert session.counters()["busy_ns"] > 0, "nothing was done on the device"
    return found


def test_every_collective_on_arrays_of_a_library_that_has_dlpack() -> None:
    ranks = RankPool(2, "auto", HVD_CUDA_DRIVER=str(fake_cuda_driver.driver()))
    try:
        found = ranks.run(collectives)
    finally:
        ranks.close()
    shared = {
        "sum": [1.0, 3.0, 5.0, 7.0],
        "in place": [2, 2, 2],
        "root's": [1.0, 2.0, 3.0, 4.0],
        "group": [[2.0], [4.0, 1.0]],
        "gathered": [[0, 0], [1, 1], [1, 1]],
        "copied": [0],
        "strided": [0, 4, 8],
    }
    for rank, each in enumerate(found):
        own = {
            "input": [float(i + rank) for i in range(4)],
            "exchanged": [[rank, 10 + rank], [1, 1]],
            "scattered": [[[2.0], [4.0]], [[6.0]]][rank],
        }
        assert each == shared | own
