"""Virtual elastic job that has trained for some time, with accessors for tests."""

from __future__ import annotations

from typing import Any

from hvdtest.virtual_elastic import Chances, VirtualJob, VirtualWorker

from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic.state import DriverSettings
from hvd_kernel.protocol import elastic as p

A, B = "localhost", "127.0.0.1"
BOTH = {A: 2, B: 2}
FOUR = DriverSettings(
    np=4, min_np=2, max_np=4, last_call_s=0.0, elastic_timeout_s=60.0, start_timeout_s=60.0, patience_s=60.0
)
LONG = 1_000_000


def trains(
    settings: DriverSettings = FOUR, hosts: dict[str, int] = BOTH, *, spares: int = 0, **chances: Any
) -> VirtualJob:
    """A job that has been training for some time; ``spares``: of each host."""
    job = VirtualJob(settings, hosts, 0, Chances(late=0.0, **chances), steps=LONG)
    job.spares = spares
    job.discover()
    job.run(20.0)
    return job


def sizes(job: VirtualJob) -> list[tuple[str, int]]:
    return [(host, slot) for host, slot, _ in job.ranks()]


def worker(job: VirtualJob, rank: int) -> VirtualWorker:
    return job.workers[job.ranks()[rank][2]]


def let_finish(job: VirtualJob) -> e.EndJob:
    job.steps = 0
    job.run()
    assert job.end is not None
    return job.end


def messages_of(job: VirtualJob, kind: type[p.ElasticMessage]) -> list[tuple[int, p.ElasticMessage]]:
    return [(number, message) for number, message in job.sent if isinstance(message, kind)]
