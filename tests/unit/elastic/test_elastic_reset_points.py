"""Deaths at each of ten points of a reset, in virtual time: each is one more reset, and all meet again (row 19)."""

from __future__ import annotations

import random

import pytest
from hvdtest.virtual_elastic import Chances, VirtualJob, VirtualWorker
from hvdtest.virtual_training import BOTH, FOUR, LONG, let_finish, worker

from hvd_kernel.launch.elastic import events as e

POINTS = [
    *(("survivor", point) for point in ("leaving", "asking", "placed", "meeting", "training")),
    *(("newcomer", point) for point in ("importing", "asking", "placed", "meeting", "training")),
]
"""Before it reports why, before its request, with its place, while it waits for the others, and once all have met."""


class Deadly(VirtualJob):
    """A job of four in which rank 1 is killed, and another worker at a point of the reset that follows."""

    def __init__(self, who: str, point: str, seed: int) -> None:
        super().__init__(FOUR, BOTH, seed, Chances(late=0.2), steps=LONG)
        self.who, self.point = who, point
        self.to_pass = random.Random(seed).randrange(3) if who == "survivor" else 0
        self.victim: VirtualWorker | None = None
        self.is_armed = False
        self.discover()
        self.run(60.0)
        assert self.driver.generation == 1
        self.is_armed = True
        self.kill(worker(self, 1))

    def _start(self, worker: VirtualWorker) -> None:
        super()._start(worker)
        self._strike(worker, "importing")

    def _enter(self, worker: VirtualWorker, phase: str) -> bool:
        return super()._enter(worker, phase) and not self._strike(worker, phase)

    def _strike(self, worker: VirtualWorker, phase: str) -> bool:
        """Kill a chosen worker at its point: the first, second or third survivor to arrive."""
        of_those = "newcomer" if worker.number >= FOUR.np else "survivor"
        first = phase == "training" and worker.generation < 2
        if not self.is_armed or self.victim or (of_those, phase) != (self.who, self.point) or first:
            return False
        self.to_pass -= 1
        if self.to_pass >= 0:
            return False
        self.victim = worker
        self.kill(worker)
        return True


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 100), marks=pytest.mark.nightly)], ids=len)
@pytest.mark.parametrize(("who", "point"), POINTS, ids=[f"{who} {point}" for who, point in POINTS])
def test_19_a_death_during_a_reset_is_one_more_reset(who: str, point: str, seeds: range) -> None:
    for seed in seeds:
        job = Deadly(who, point, seed)
        job.run(60.0)
        told = f"seed {seed}, generation {job.driver.generation}\n" + "\n".join(job.said)
        assert job.victim is not None, told
        numbers = [number for *_, number in job.ranks()]
        assert len(numbers) == FOUR.np, told
        assert job.victim.number not in numbers, told
        assert job.driver.generation <= 4, told
        assert let_finish(job) == e.EndJob("done"), told
