"""New workers of an elastic job, in virtual time: which events wait for them, and which do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hvdtest.virtual_elastic import VirtualWorker
from hvdtest.virtual_training import BOTH, FOUR, A, B, let_finish, messages_of, sizes, trains, worker

from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic.state import DriverSettings
from hvd_kernel.protocol import elastic as p

SHRINKING = replace(FOUR, np=2, min_np=1, cooldown_s=(50.0, 60.0), last_call_s=1.0)
"""A slot whose worker has failed stays empty for a while."""


def test_members_continue_training_while_new_workers_start() -> None:
    job = trains(replace(FOUR, np=2), {A: 2})
    job.discover(BOTH)
    assert [number for number in job.workers if job.workers[number].host == B] == [2, 3]
    assert not messages_of(job, p.HostsUpdated), "nobody is interrupted before there is somebody to meet"
    job.run(20.0)
    assert [(number, message.change) for number, message in messages_of(job, p.HostsUpdated)] == [(0, 2), (1, 2)]  # type: ignore[attr-defined]


def test_new_workers_of_a_removed_host_are_dismissed() -> None:
    job = trains(replace(FOUR, np=2), {A: 2})
    job.discover(BOTH)
    job.discover({A: 2})
    job.run(20.0)
    assert (job.driver.generation, sizes(job)) == (1, [(A, 0), (A, 1)])
    assert [each.number for each in job.living()] == [0, 1], "nobody waits for a place that there is not"
    assert not messages_of(job, p.HostsUpdated)


@pytest.mark.parametrize("phase", ["asking", "placed", "meeting", "training"])
def test_new_worker_that_fails_in_the_reset_is_replaced(phase: str) -> None:
    job = trains()
    enter = job._enter

    def dies(worker: VirtualWorker, entered: str) -> bool:
        survives = enter(worker, entered)
        if worker.number == 4 and entered == phase:
            job.kill(worker)
        return survives and worker.alive

    job._enter = dies  # type: ignore[method-assign]
    job.kill(worker(job, 1))
    job.run(60.0)
    assert (len(job.ranks()), job.ranks()[0][2], len(job.workers)) == (4, 0, 6)


@pytest.mark.parametrize("seconds_between", [0.5, 3.0])
def test_failure_does_not_wait_for_a_starting_worker(seconds_between: float) -> None:
    job = trains(SHRINKING, {A: 2})
    job.importing_s = (30.0, 30.0)
    job.discover({A: 2, B: 1})
    job.run(seconds_between)
    job.kill(worker(job, 1))
    job.run(3.0)
    assert (job.driver.generation, job.ranks()) == (2, [(A, 0, 0)]), "the one that is left goes on alone"
    job.run(40.0)
    assert (job.driver.generation, job.ranks()) == (3, [(A, 0, 0), (B, 0, 2)]), "the newcomer has the next reset"
    assert [number for number, _ in messages_of(job, p.HostsUpdated)] == [0]
    assert let_finish(job) == e.EndJob("done")


def test_a_failure_waits_for_the_process_in_its_own_slot() -> None:
    job = trains()
    job.importing_s = (10.0, 10.0)
    job.kill(worker(job, 1))
    job.run(20.0)
    assert (job.driver.generation, len(job.ranks())) == (2, 4)


def test_failure_that_leaves_too_few_waits_for_a_new_worker() -> None:
    job = trains(replace(SHRINKING, min_np=2), {A: 2})
    job.importing_s = (10.0, 10.0)
    job.discover({A: 2, B: 1})
    job.run(3.0)
    job.kill(worker(job, 1))
    job.run(20.0)
    assert (job.driver.generation, job.ranks()) == (2, [(A, 0, 0), (B, 0, 2)])


def test_hosts_replaced_by_others_do_not_stop_training() -> None:
    job = trains()
    job.importing_s = (30.0, 30.0)
    job.discover({A: 2, "c": 2})
    job.run(10.0)
    assert (job.driver.generation, sizes(job)) == (2, [(A, 0), (A, 1)])
    job.run(40.0)
    assert (job.driver.generation, sizes(job)) == (3, [(A, 0), (A, 1), ("c", 0), ("c", 1)])


def test_a_failure_and_a_change_of_the_hosts_are_one_reset() -> None:
    job = trains(replace(FOUR, np=2, last_call_s=1.0), {A: 2})
    job.importing_s = (5.0, 5.0)
    job.kill(worker(job, 0))
    job.run(0.1)
    job.importing_s = (2.0, 2.0)  # those that come are ready before the one that replaces
    job.discover(BOTH)
    job.run(30.0)
    assert (job.driver.generation, len(job.ranks())) == (2, 4)


def test_ten_successive_hosts_cause_one_reset() -> None:
    job = trains(DriverSettings(np=2, min_np=2, last_call_s=2.0), {A: 2})
    hosts = {A: 2}
    for number in range(10):
        hosts |= {f"node{number}": 1}
        job.discover(hosts)
        job.run(0.15)
    job.run(30.0)
    assert (job.driver.generation, len(job.ranks())) == (2, 12)


def test_a_spare_replaces_a_failed_rank() -> None:
    job = trains(spares=1)
    job.importing_s = (30.0, 30.0)
    job.kill(worker(job, 1))
    job.run(6.0)
    assert (job.driver.generation, len(job.ranks()), job.taken) == (2, 4, 1)
    job.kill(worker(job, 0))
    job.run(6.0)
    assert (job.driver.generation, len(job.ranks()), job.taken) == (3, 4, 2), "the next one was started behind it"


def test_two_failures_use_one_spare_and_one_new_process() -> None:
    job = trains(spares=1)
    job.importing_s = (10.0, 10.0)
    for each in (worker(job, 0), worker(job, 1)):
        job.kill(each)
    job.run(5.0)
    assert (job.driver.generation, job.taken) == (1, 1), "the others wait for the process in the other slot"
    job.run(15.0)
    assert (job.driver.generation, len(job.ranks()), job.taken) == (2, 4, 1)
