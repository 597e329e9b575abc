"""Driver of elastic jobs in virtual time: whatever happens in whatever order, every job ends or trains on.

What must hold with every action is asserted by hvdtest/virtual_checks.py: no worker is in two generations, ranks are 0 to
size - 1, rank 0 is the oldest, sizes and resets keep to their limits, nobody stays without an answer.
"""

from __future__ import annotations

import pytest
from hvdtest.elastic_schedules import explore
from hvdtest.virtual_elastic import VirtualJob

BATCH = 1000


def explore_all(batch: int) -> list[VirtualJob]:
    return [explore(seed) for seed in range(BATCH * batch, BATCH * (batch + 1))]


@pytest.mark.parametrize("batch", [*range(10), *(pytest.param(b, marks=pytest.mark.nightly) for b in range(10, 40))])
def test_whatever_happens_in_whatever_order(batch: int) -> None:
    jobs = explore_all(batch)
    resets = sum(job.driver.generation > 1 for job in jobs)
    done = sum(job.end is not None and job.end.verdict == "done" for job in jobs)
    assert resets > BATCH // 5, "too little happens to find anything"
    assert done > BATCH // 5, "too much happens to survive anything"
