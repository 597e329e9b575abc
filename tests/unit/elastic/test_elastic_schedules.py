"""Driver of elastic jobs in virtual time: whatever happens in whatever order, every job ends or trains on.

What must hold with every action is asserted by hvdtest/virtual_checks.py: no worker is in two generations, ranks are 0 to
size - 1, rank 0 is the oldest, sizes and resets keep to their limits, nobody stays without an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest
from hvdtest.elastic_schedules import explore
from hvdtest.virtual_elastic import VirtualJob
from msgspec import structs

from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic import reset, state
from hvd_kernel.launch.elastic.assignment import Assignment, Living, Slot
from hvd_kernel.launch.elastic.driver import Driver
from hvd_kernel.launch.elastic.state import JobState, Timers
from hvd_kernel.launch.placement import Host
from hvd_kernel.protocol.elastic import Place

BATCH = 1000


def explore_all(batch: int) -> list[VirtualJob]:
    return [explore(seed) for seed in range(BATCH * batch, BATCH * (batch + 1))]


@pytest.mark.parametrize("batch", [*range(10), *(pytest.param(b, marks=pytest.mark.nightly) for b in range(10, 40))])
def test_random_events_in_any_order(batch: int) -> None:
    jobs = explore_all(batch)
    resets = sum(job.driver.generation > 1 for job in jobs)
    done = sum(job.end is not None and job.end.verdict == "done" for job in jobs)
    assert resets > BATCH // 5, "too little happens to find anything"
    assert done > BATCH // 5, "too much happens to survive anything"
    assert sum(job.taken > 0 for job in jobs) > BATCH // 40, "too few of them use a spare"


def of_no_age(living: Sequence[Living], *rest: Any) -> Assignment:
    """Ranks go by slots alone."""
    return ASSIGN([each._replace(joined=0) for each in living], *rest)


def of_any_number(
    living: Sequence[Living], hosts: Sequence[Host], _limit: int | None, blocked: Collection[Slot]
) -> Assignment:
    return ASSIGN(living, hosts, None, blocked)


def from_rank_0(job: JobState, plan: Assignment) -> Iterator[Place]:
    """Use the state of rank 0, whichever rank has a newer one."""
    return (structs.replace(place, root=0) for place in PLACES(job, plan))


def into_full_slots(job: JobState, plan: Assignment) -> Iterator[e.Action]:
    """Start workers without waiting for the exit of old ones."""
    ended = {number: each for number, each in job.workers.items() if each.dismissed}
    for number in ended:
        del job.workers[number]
    yield from START(job, plan)
    job.workers |= ended


ASSIGN, PLACES, START = state.assign, reset._places, reset._start


@pytest.mark.parametrize(
    ("where", "name", "mutant"),
    [
        (state, "assign", of_no_age),
        (state, "assign", of_any_number),
        (reset, "_places", from_rank_0),
        (reset, "_start", into_full_slots),
        (reset, "_announce", lambda _job, _plan, _now: ()),
        (reset, "_may_reset", lambda _job: True),
        (reset, "_watch_stragglers", lambda _job: ()),
        (reset, "_end_if_over", lambda _job: ()),
        (JobState, "needed", 1),
        (JobState, "alive", property(lambda job: [*job.workers.values()])),
        (JobState, "is_finishing", False),
        (Driver, "_forget", lambda _driver, _worker: None),
        (Timers, "cancel", lambda _timers, *_which, worker=-1: None),
    ],
)
def test_seeded_bug_is_found(where: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, mutant)
    with pytest.raises((AssertionError, KeyError)):
        explore_all(0)
