"""Placement of jobs: on this machine, in an allocation, on hosts that the job names; and jobs that do not fit."""

from __future__ import annotations

import pytest

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs import Bounds, JobSpec, Replica, Resources
from hvd_kernel.jobs.place import Machine, place
from hvd_kernel.processes.limits import Limits

GIB = 2**30
HERE = Machine(cores=4, memory=16 * GIB, gpus=2)
SMALL = Resources(Bounds(1, 2), Bounds(GIB, 2 * GIB), 1)


def job(*replicas: Replica, **more) -> JobSpec:
    return JobSpec("polyaxonfile", replicas or (Replica("master", 0), Replica("worker", 0)), ("true",), **more)


def test_replicas_without_hosts_run_here_with_their_limits() -> None:
    placed = place(job(Replica("master", 0, resources=SMALL), Replica("worker", 0)), HERE)
    assert placed.hosts == ("localhost", "localhost")
    assert placed.spelled == "localhost:2"
    assert placed.limits == (Limits(2, 2 * GIB), Limits())
    assert (placed.gpus, placed.devices) == (1, "0")


def test_ranks_of_a_replica_share_its_resources() -> None:
    placed = place(job(Replica("worker", 0, slots=2, resources=Resources(Bounds(limit=3), Bounds(limit=GIB), 2))), HERE)
    assert placed.limits == (Limits(1.5, GIB // 2),) * 2
    assert placed.devices == "0,1"


def test_replicas_fill_an_allocation_host_by_host() -> None:
    placed = place(job(Replica("worker", 0, slots=2), Replica("worker", 1)), HERE, [("n1", 1), ("n2", 4)])
    assert placed.spelled == "n1:1,n2:2"
    assert placed.devices == "", "what this machine has is no matter there"


def test_an_allocation_that_is_too_small_is_named() -> None:
    with pytest.raises(ConfigError, match=r"3 ranks do not fit: the allocation has 2 slots:"):
        place(job(Replica("worker", 0, slots=3)), HERE, [("n1", 2)])


def test_hosts_named_by_the_job_are_kept() -> None:
    placed = place(job(Replica("host", 0, "a", 2), Replica("host", 1, "fe80::1")), HERE, [("n1", 9)])
    assert placed.spelled == "a:2,[fe80::1]:1"


def test_missing_devices_are_an_error_with_its_remedy() -> None:
    greedy = job(Replica("worker", 0, slots=4, resources=Resources(gpus=4)))
    with pytest.raises(ConfigError, match=r"the 4 ranks here need 4 GPUs, this machine has 2: add --gpus none"):
        place(greedy, HERE)
    assert place(greedy, HERE.blind()).gpus == 4
    assert place(job(Replica("worker", 0, resources=Resources(gpus=0))), HERE).devices == "none"


def test_requests_beyond_this_machine_are_reported() -> None:
    placed = place(job(Replica("worker", 0, resources=Resources(Bounds(5), Bounds(32 * GIB)))), HERE)
    assert placed.warnings == (
        "the ranks request 5 cores, this machine has 4: they take turns",
        "the ranks request 32 GiB of memory, this machine has 16 GiB",
    )
