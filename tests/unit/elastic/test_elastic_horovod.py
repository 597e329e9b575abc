"""Horovod's own unit tests of an elastic driver, by behaviour (test/single/test_elastic_driver.py there)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hvdtest.virtual_elastic import Chances, VirtualJob

from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic.state import DriverSettings
from hvd_kernel.protocol import elastic as p

TWO = {"host-1": 2, "host-2": 2}
STRICT = DriverSettings(np=2, min_np=2, max_np=4, last_call_s=0.0, slot_failures=1, host_failures=1)
"""One failure has its whole host left out, as in Horovod."""


def trains(settings: DriverSettings = STRICT, hosts: dict[str, int] = TWO) -> VirtualJob:
    job = VirtualJob(settings, hosts, 0, Chances(late=0.0), steps=1_000_000)
    job.discover()
    job.run(20.0)
    return job


def of(job: VirtualJob, kind: type[p.ElasticMessage]) -> list[tuple[int, p.ElasticMessage]]:
    return [(number, message) for number, message in job.sent if isinstance(message, kind)]


def test_rank_and_size() -> None:
    places = trains().checks.places
    assert [(place.rank, place.size, place.local_rank, place.cross_rank) for place in places.values()] == [
        (0, 4, 0, 0),
        (1, 4, 1, 0),
        (2, 4, 0, 1),
        (3, 4, 1, 1),
    ]


def test_rank_and_size_with_host_failure() -> None:
    job = trains()
    job.kill(job.workers[2], 1)
    job.run(20.0)
    places = [job.checks.places[number] for *_, number in job.ranks()]
    assert [(each.rank, each.size, each.local_rank, each.cross_size) for each in places] == [(0, 2, 0, 1), (1, 2, 1, 1)]


def test_rank_and_size_with_host_added() -> None:
    job = trains(hosts={"host-1": 2})
    before = job.ranks()
    job.discover(TWO)
    job.run(20.0)
    assert (job.ranks()[:2], len(job.ranks())) == (before, 4)


def test_wait_for_available_slots() -> None:
    job = VirtualJob(replace(STRICT, np=16, max_np=None), {}, 0, Chances(late=0.0))
    for hosts in ({}, {"host-1": 4}, {"host-1": 4, "host-2": 8}):
        job.discover(hosts)
        assert not job.workers
    job.discover({"host-1": 4, "host-2": 8, "host-3": 4})
    assert len(job.workers) == 16


def test_wait_for_min_hosts() -> None:
    job = trains(hosts={"host-1": 1, "host-2": 1})
    job.kill(job.workers[1], 1)
    job.run(5.0)
    assert job.said[-1] == "waiting for 2 slots, there are 1 (up to 600 s)"
    job.discover({"host-1": 1, "host-2": 1, "host-3": 1})
    job.run(20.0)
    assert [host for host, *_ in job.ranks()] == ["host-1", "host-3"]


def test_all_workers_fail() -> None:
    job = trains()
    for each in job.living():
        job.kill(each, 1)
    job.run()
    assert job.end is not None
    assert job.end.verdict == "failed"


def test_shutdown_on_success() -> None:
    job = trains(replace(STRICT, np=4, min_np=4))
    job.kill(job.workers[0], 0)
    job.run()
    assert job.end == e.EndJob("done"), "Horovod's is 1: it kills those that wait, and counts them"
    assert [number for number, _ in of(job, p.Removed)] != []


def test_host_shutdown_on_worker_failure() -> None:
    job = trains()
    job.kill(job.workers[2], 1)
    job.run(20.0)
    assert [number for number, _ in of(job, p.Removed)] == [3]


def test_only_registered_workers_are_notified_of_changes() -> None:
    """Horovod's worker_notification_manager and send_notifications_without_assignments: it notifies rank 0 alone, once."""
    job = trains(hosts={"host-1": 2})
    job.driver._job.workers[1].registered = False
    job.discover(TWO)
    job.run(20.0)
    assert sorted({number for number, _ in of(job, p.HostsUpdated)}) == [0]
    job = VirtualJob(STRICT, {}, 0)
    job.discover(TWO)
    job.discover({"host-1": 2})
    assert not of(job, p.HostsUpdated)


def test_order_of_hosts() -> None:
    job = trains(replace(STRICT, max_np=None), {"a": 1, "b": 1, "c": 1})
    job.discover({"d": 1, "c": 1, "b": 1})
    job.run(20.0)
    assert [host for host, *_ in job.ranks()] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("hosts", "changes"),
    [
        ({"a": 2, "b": 1}, [2]),
        ({"a": 3}, [2]),
        ({"a": 1}, [1]),
        ({"b": 1, "a": 1}, [3, 2]),  # members continue without the new one, until it is ready
        ({"a": 2}, []),
    ],
)
def test_kinds_of_host_changes(hosts: dict[str, int], changes: list[int]) -> None:
    job = trains(replace(STRICT, np=1, min_np=1, max_np=None), {"a": 2})
    job.discover(hosts)
    job.run(20.0)
    found = [message.change for _, message in of(job, p.HostsUpdated)]  # type: ignore[attr-defined]
    assert [*dict.fromkeys(found)] == changes


def test_blacklisted_hosts_are_not_used() -> None:
    job = trains()
    job.kill(job.workers[3], 1)
    job.run(20.0)
    job.discover({"host-1": 2})
    job.discover(TWO)
    job.run(20.0)
    assert {host for host, *_ in job.ranks()} == {"host-1"}


def test_shutdown_on_initial_discovery_failure() -> None:
    job = VirtualJob(STRICT, {}, 0)
    job.deliver(e.DiscoveryFailed("Exit code: 1"))
    assert job.end is not None
    assert "Exit code: 1" in job.end.reason
