"""init and shutdown, over and over in one process: no thread, no descriptor, no memory is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.launch import RankPool

pytestmark = pytest.mark.mp

SETTLED_WITHIN_S = 60.0


def more(now: list[int], before: list[int]) -> bool:
    return any(one > other for one, other in zip(now, before, strict=True))


def cycles(count: int) -> dict[str, list[int]]:
    """Return threads and descriptors before the first cycle and after the last, and the memory added in between."""
    import time

    import torch

    import hvd_kernel.torch as hvd
    from hvd_kernel.core import session

    def load() -> list[int]:
        return [len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd")]

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def once(cycle: int) -> None:
        hvd.init()
        x = hvd.allreduce(torch.full((10,), float(cycle)), name="x", op=hvd.Sum)
        assert torch.equal(x, torch.full((10,), float(cycle * hvd.size())))
        if cycle % 3 == 0:
            hvd.barrier()
        hvd.shutdown()

    for cycle in range(20):
        once(cycle)
    before, rss = load(), resident()
    for cycle in range(count):
        once(cycle)
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while more(load(), before) and time.monotonic() < deadline:
        time.sleep(0.01)  # a thread that was joined may be listed for a moment longer
    assert session.generation() >= count + 1
    assert session.counters()["ops"] >= count
    return {"before": before, "after": load(), "grown": [resident() - rss]}


@pytest.mark.parametrize(
    ("layout", "count"),
    [
        ((2, "shm"), 200),
        pytest.param((2, "shm"), 1000, marks=pytest.mark.nightly),
        pytest.param((2, "tcp"), 200, marks=pytest.mark.nightly),
        pytest.param((4, "shm"), 100, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_repeated_init_and_shutdown_leak_nothing(layout: tuple[int, str], count: int) -> None:
    with RankPool(*layout) as pool:
        for found in pool.run(cycles, count, timeout=240):
            assert not more(found["after"], found["before"]), found
            assert found["grown"][0] < (2 << 20), "memory stays"
