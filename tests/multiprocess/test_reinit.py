"""init and shutdown, over and over in one process: no thread, no descriptor, no memory is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp


def cycles(count: int) -> dict[str, list[int]]:
    """Threads and descriptors before the first cycle and after the last."""
    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel import _session

    def load() -> list[int]:
        return [len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd")]

    hvd.init()
    hvd.shutdown()
    before = load()
    for cycle in range(count):
        hvd.init()
        x = hvd.allreduce(torch.full((10,), float(cycle)), name="x", op=hvd.Sum)
        assert torch.equal(x, torch.full((10,), float(cycle * hvd.size())))
        if cycle % 3 == 0:
            hvd.barrier()
        hvd.shutdown()
    assert _session.generation() >= count + 1
    assert _session.counters()["ops"] >= count
    return {"before": before, "after": load()}


@pytest.mark.parametrize("layout", [(2, "shm"), (2, "tcp"), (4, "shm")], ids=["np2-shm", "np2-tcp", "np4-shm"])
def test_a_hundred_times(layout: tuple[int, str]) -> None:
    with RankPool(*layout) as pool:
        for found in pool.run(cycles, 100, timeout=100):
            assert found["after"] == found["before"]
