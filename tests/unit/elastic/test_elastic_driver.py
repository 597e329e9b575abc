"""Driver of elastic jobs, event by event: the scenarios of an elastic job in virtual time, without other events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hvdtest.virtual_elastic import Chances, VirtualJob, VirtualWorker
from hvdtest.virtual_training import BOTH, FOUR, LONG, A, B, let_finish, messages_of, sizes, trains, worker

from hvd_kernel.launch.elastic import events as e
from hvd_kernel.launch.elastic.state import DriverSettings
from hvd_kernel.protocol import elastic as p


def test_job_without_events_has_one_generation() -> None:
    job = trains()
    assert sizes(job) == [(A, 0), (A, 1), (B, 0), (B, 1)]
    assert let_finish(job) == e.EndJob("done")
    assert job.driver.generation == 1
    assert not messages_of(job, p.HostsUpdated)


def test_workers_start_with_the_ranks_of_the_first_generation() -> None:
    job = trains()
    planned = {start.worker: (start.assigned.rank, start.assigned.local_rank, start.size) for start in job.starts}
    places = {number: (place.rank, place.local_rank, place.size) for number, place in messages_of(job, p.Place)}
    assert planned == places
    assert sorted(planned) == [0, 1, 2, 3]


def test_hosts_are_added_and_those_of_the_start_are_removed() -> None:
    job = trains(replace(FOUR, np=2), {A: 2})
    assert sizes(job) == [(A, 0), (A, 1)]
    job.discover(BOTH)
    job.run(20.0)
    assert (job.driver.generation, sizes(job)) == (2, [(A, 0), (A, 1), (B, 0), (B, 1)])
    job.discover({B: 2})
    job.run(20.0)
    assert (job.driver.generation, sizes(job)) == (3, [(B, 0), (B, 1)])
    assert sorted(number for number, _ in messages_of(job, p.Removed)) == [0, 1]
    assert let_finish(job) == e.EndJob("done")


def test_a_failed_rank_is_replaced_and_the_oldest_is_rank_0() -> None:
    job = trains()
    job.kill(worker(job, 0))
    job.run(20.0)
    assert job.driver.generation == 2
    assert job.ranks() == [(A, 1, 1), (A, 0, 4), (B, 0, 2), (B, 1, 3)]
    place = job.checks.places[1]
    assert (place.fresh, place.before, place.root) == ((1,), (1, -1, 2, 3), 0)
    assert not messages_of(job, p.HostsUpdated), "who has lost a peer comes without being told"


def test_newest_state_of_the_oldest_process_is_used() -> None:
    job = trains()
    job.kill(worker(job, 0))
    for rank, step in ((1, 100), (2, 101), (3, 101)):
        worker(job, rank - 1).step = step
    job.run(20.0)
    assert job.checks.places[1].root == 2


def test_first_failure_with_its_own_cause_is_blamed() -> None:
    job = trains()
    for number, consequence in ((0, True), (1, False), (2, False), (3, True)):
        job.deliver(e.WorkerExited(number, 1, consequence=consequence))
    assert job.end == e.EndJob("failed", "all workers have failed", 1)


@pytest.mark.parametrize(("budget", "ends"), [(None, False), (2, False), (1, True), (0, True)])
def test_failures_use_up_restarts(budget: int | None, ends: bool) -> None:
    job = trains(replace(FOUR, max_restarts=budget))
    job.kill(job.workers[1])
    job.kill(job.workers[3])
    job.run(20.0)
    assert (job.end is not None) == ends
    if job.end is not None:
        assert f"--max-restarts {budget} is all that may" in job.end.reason
    else:
        assert (job.driver.generation, len(job.ranks())) == (2, 4)


def test_growth_uses_up_no_restarts() -> None:
    job = trains(replace(FOUR, np=2, max_restarts=0), {A: 2})
    job.discover(BOTH)
    job.run(20.0)
    assert (job.driver.generation, len(job.ranks())) == (2, 4)


def test_too_few_slots_end_the_job_after_the_elastic_timeout() -> None:
    job = trains(replace(FOUR, min_np=4, slot_failures=1, host_failures=1, elastic_timeout_s=1.0))
    job.kill(worker(job, 0))
    begun = job.now
    job.run()
    assert job.end is not None
    assert job.end == e.EndJob("failed", "waited for 4 slots, had 2 (--elastic-timeout, 1 s)", 0)
    assert 1.0 <= job.now - begun < 3.0


@pytest.mark.parametrize(("limit", "generations"), [(0, 1), (1, 2), (2, 3)])
def test_the_reset_limit_counts_resets_of_all_kinds(limit: int, generations: int) -> None:
    job = trains(replace(FOUR, np=2, reset_limit=limit), {A: 2})
    job.discover(BOTH)
    job.run(20.0)
    job.discover({B: 2} if limit else {A: 1})
    job.run(20.0)
    assert job.driver.generation == generations
    assert (job.end is None) == (limit == 2)
    if job.end is not None:
        assert f"--reset-limit {limit} is reached" in job.end.reason


def test_new_hosts_request_no_reset_beyond_the_limit() -> None:
    job = trains(replace(FOUR, np=2, reset_limit=0), {A: 2})
    job.discover(BOTH)
    job.run(20.0)
    assert let_finish(job) == e.EndJob("done")
    assert job.driver.generation == 1


def test_a_host_returns_last_after_its_cooldown() -> None:
    settings = replace(FOUR, cooldown_s=(1.0, 60.0), host_failures=1, np=6, max_np=6)
    job = trains(settings, BOTH | {"c": 2})
    delays = []
    for _ in range(2):
        victim = next(job.workers[number] for host, slot, number in job.ranks() if (host, slot) == (B, 1))
        job.kill(victim)
        begun, before = job.now, len(job.workers)
        while len(job.workers) == before and job.now < begun + 60.0:
            job.run(0.1)
        delays.append(job.now - begun)
        job.run(20.0)
        assert sizes(job) == [(A, 0), (A, 1), ("c", 0), ("c", 1), (B, 0), (B, 1)]
    assert 2.0 <= delays[0] < 3.2
    assert 4.0 <= delays[1] < 5.2


def test_hosts_beyond_max_np_are_ignored() -> None:
    job = trains()
    sent = len(job.sent)
    for hosts in (BOTH | {"c": 2}, {A: 3, B: 2}, BOTH):
        job.discover(hosts)
        job.run(5.0)
    assert (len(job.sent), len(job.workers), job.driver.generation) == (sent, 4, 1)


def test_discovery_may_fail_later_but_not_at_first() -> None:
    job = VirtualJob(FOUR, BOTH, 0)
    job.deliver(e.DiscoveryFailed("exit status 3: no such file"))
    assert job.end == e.EndJob("failed", "host discovery has failed: exit status 3: no such file")
    job = trains()
    for why in ("exit status 1", "exit status 1", "exit status 2"):
        job.deliver(e.DiscoveryFailed(why))
    assert [text for text in job.said if "discovery" in text] == [
        f"warning: host discovery has failed, the hosts of before count: {why}"
        for why in ("exit status 1", "exit status 2")
    ]
    assert let_finish(job) == e.EndJob("done")


def test_job_starts_once_its_hosts_are_available() -> None:
    job = VirtualJob(FOUR, {}, 0, Chances(late=0.0), steps=LONG)
    job.discover()
    job.run(3.0)
    assert not job.workers
    assert job.said == ["waiting for 4 slots, there are 0 (up to 60 s)"]
    job.discover(BOTH)
    job.run(20.0)
    assert len(job.ranks()) == 4


def test_slots_of_a_host_are_removed_and_added() -> None:
    job = trains(replace(FOUR, np=4), {A: 4})
    job.discover({A: 2})
    job.run(20.0)
    assert [number for *_, number in job.ranks()] == [0, 1]
    assert sorted(number for number, _ in messages_of(job, p.Removed)) == [2, 3]
    job.discover({A: 4})
    job.run(20.0)
    assert job.ranks() == [(A, 0, 0), (A, 1, 1), (A, 2, 4), (A, 3, 5)]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_all_hosts_of_the_last_generation_disappear_at_once(checkpoint: bool) -> None:
    job = trains(replace(FOUR, checkpoint=checkpoint))
    job.discover({"c": 4})
    job.run(20.0)
    if not checkpoint:
        assert job.end == e.EndJob("failed", "No hosts from previous set remaining, unable to broadcast state.")
        return
    assert (job.driver.generation, sizes(job)) == (2, [("c", slot) for slot in range(4)])
    assert sorted(number for number, _ in messages_of(job, p.Removed)) == [0, 1, 2, 3]


def test_checkpoint_lets_a_job_survive_the_loss_of_all_workers() -> None:
    job = trains(replace(FOUR, checkpoint=True))
    for each in job.living():
        job.kill(each)
    job.run(20.0)
    assert (job.driver.generation, len(job.ranks())) == (2, 4)
    assert job.checks.places[4].fresh == (0, 1, 2, 3)


def test_rank_reports_a_state_loaded_from_files() -> None:
    job = trains()
    job.deliver(e.WorkerMessage(2, p.Registered(resumes=True)))
    for _ in range(2):
        for each in job.living():
            job.kill(each)
        job.run(20.0)
    assert (job.driver.generation, len(job.ranks())) == (3, 4)
    for each in job.living():
        job.kill(each)
    job.run()
    assert job.end is not None, "each slot has failed three times"
    assert job.end.reason == "waited for 2 slots, had 0 (--elastic-timeout, 60 s)"
    assert job.end.worker in range(8, 12), "one of the last that failed"


def test_below_min_np_the_ranks_wait_and_keep_their_state() -> None:
    job = trains(replace(FOUR, min_np=4))
    job.discover({A: 2})
    job.run(20.0)
    assert (job.driver.generation, len(job.checks.ready)) == (1, 4), "all have come, and wait"
    job.discover({A: 2, "c": 2})
    job.run(20.0)
    assert sizes(job) == [(A, 0), (A, 1), ("c", 0), ("c", 1)]
    assert job.checks.places[0].fresh == (2, 3)


def test_worker_that_exits_early_has_left() -> None:
    job = trains()
    job.kill(worker(job, 3), 0)
    job.run(20.0)
    assert (job.driver.generation, sizes(job)) == (2, [(A, 0), (A, 1), (B, 0)])
    assert let_finish(job) == e.EndJob("done")


def test_early_exit_ends_a_job_with_too_few_workers() -> None:
    job = trains(replace(FOUR, min_np=4))
    job.kill(worker(job, 0), 0)
    job.run(20.0)
    assert job.end == e.EndJob("done")
    assert [message.reason for _, message in messages_of(job, p.Removed)] == [  # type: ignore[attr-defined]
        "another rank has ended already, and fewer than 4 are left"
    ] * 3


def test_hung_worker_is_replaced_once_its_process_has_exited() -> None:
    job = trains()
    hung = worker(job, 2)
    hung.hangs = True
    job.deliver(e.WorkerHung(hung.number, "it has been stopped for 5 s"))
    assert len(job.workers) == 4, "its slot is not empty yet"
    job.run(20.0)
    assert (job.driver.generation, job.ranks()[2], len(job.workers)) == (2, (B, 0, 4), 5)


def test_worker_missing_at_a_reset_is_replaced() -> None:
    job = trains()
    worker(job, 2).hangs = True
    job.kill(worker(job, 0))
    job.run(40.0)
    assert job.driver.generation == 1
    job.run(45.0)
    assert (job.driver.generation, len(job.ranks())) == (2, 4)


def test_worker_waiting_for_a_failed_one_is_notified() -> None:
    job = trains()
    enter = job._enter

    def dies(worker: VirtualWorker, entered: str) -> bool:
        if (worker.number, entered) == (4, "placed"):
            job.kill(worker, 3)
        return enter(worker, entered) and worker.alive

    job._enter = dies  # type: ignore[method-assign]
    job.kill(worker(job, 3))
    begun = job.now
    while job.driver.generation < 3 and job.now < begun + 60.0:
        job.run(0.1)
    assert job.now < begun + 20.0, "nobody has waited until the others were too late"
    lost = p.Lost(2, "exit status 3")
    assert messages_of(job, p.Lost) == [(0, lost), (1, lost), (2, lost)]


def test_briefly_missing_hosts_cause_no_reset() -> None:
    job = trains(replace(FOUR, last_call_s=1.0))
    job.discover({})
    job.run(0.9)
    job.discover(BOTH)
    job.run(10.0)
    assert (job.driver.generation, messages_of(job, p.HostsUpdated)) == (1, [])


def lose(job: VirtualJob, host: str, *, silent: bool) -> None:
    job.down.add(host)
    for each in job.living(host):
        each.alive = False
        job._break(each.generation)
    job.deliver(e.HostLost(host, "no answer", silent=silent))
    job.run(30.0)


@pytest.mark.parametrize(
    ("hosts", "lost", "goes_on"),
    [
        ({A: 2, B: 2}, B, True),  # a tie: that of rank 0
        ({A: 2, B: 2}, A, False),
        ({A: 3, B: 2}, B, True),
        ({A: 2, B: 3}, B, False),
        ({A: 2, B: 3}, A, True),
    ],
)
def test_majority_of_a_partitioned_network_continues(hosts: dict[str, int], lost: str, goes_on: bool) -> None:
    np = sum(hosts.values())
    job = trains(DriverSettings(np=np, min_np=1, max_np=np), hosts)
    lose(job, lost, silent=True)
    if goes_on:
        assert {host for host, *_ in job.ranks()} == hosts.keys() - {lost}
    else:
        assert job.end is not None
        assert job.end.reason.startswith("the network is cut: ")
        assert "here, the minority" in job.end.reason


def test_successive_partitions_add_up() -> None:
    job = trains(DriverSettings(np=5, min_np=1), {A: 2, B: 2, "c": 1})
    job.deliver(e.HostLost(B, "no answer"))
    assert job.end is None
    job.deliver(e.HostLost("c", "no answer"))
    assert job.end is not None


def test_host_with_a_closed_connection_is_not_partitioned() -> None:
    job = trains(DriverSettings(np=5, min_np=1, max_np=5), {A: 2, B: 3})
    lose(job, B, silent=False)
    assert sizes(job) == [(A, 0), (A, 1)]


def test_worker_asked_to_leave_is_not_replaced() -> None:
    job = trains()
    job._say(worker(job, 1), p.Leaving())
    job.run(20.0)
    assert (job.driver.generation, sizes(job)) == (2, [(A, 0), (B, 0), (B, 1)])
    assert [(number, message.change) for number, message in messages_of(job, p.HostsUpdated)] == [  # type: ignore[attr-defined]
        (number, 1) for number in range(4)
    ]
    assert [number for number, _ in messages_of(job, p.Removed)] == [1]
    assert let_finish(job) == e.EndJob("done")


def test_retired_slot_is_reused_once_rediscovered() -> None:
    job = trains()
    job._say(worker(job, 1), p.Leaving())
    job.run(20.0)
    job.discover({A: 1, B: 2})
    job.run(20.0)
    assert (job.driver.generation, sizes(job)) == (2, [(A, 0), (B, 0), (B, 1)]), "nothing has changed"
    job.discover(BOTH)
    job.run(20.0)
    assert job.ranks() == [(A, 0, 0), (A, 1, 4), (B, 0, 2), (B, 1, 3)]


def test_a_slot_missing_for_a_moment_is_reused() -> None:
    """Within the last call: the values that counted before and after are the same."""
    job = trains(replace(FOUR, last_call_s=5.0))
    job._say(worker(job, 1), p.Leaving())
    job.run(20.0)
    job.discover({A: 1, B: 2})
    job.run(0.2)
    job.discover(BOTH)
    job.run(20.0)
    assert job.ranks() == [(A, 0, 0), (A, 1, 4), (B, 0, 2), (B, 1, 3)]


def test_worker_entering_elastic_run_later_gets_the_changes() -> None:
    job = trains()
    late = worker(job, 2)
    job.driver._job.workers[late.number].registered = False
    job.discover({A: 2, B: 1})
    assert [number for number, _ in messages_of(job, p.HostsUpdated)] == [0, 1, 3]
    job._say(late, p.Registered())
    job.run(0.05)
    assert [number for number, _ in messages_of(job, p.HostsUpdated)] == [0, 1, 3, 2]


def test_a_failure_after_training_fails_without_a_reset() -> None:
    job = trains()
    for number in range(4):
        job.deliver(e.WorkerMessage(number, p.Finished()))
    job.deliver(e.WorkerExited(0, 0))
    job.deliver(e.WorkerExited(1, 3))
    job.deliver(e.WorkerExited(2, 0))
    assert job.end is None
    job.deliver(e.WorkerExited(3, 0))
    assert job.end == e.EndJob("failed", "not all workers have ended well", 1)
    assert len(job.workers) == 4


def test_program_without_init_is_started_once() -> None:
    job = VirtualJob(FOUR, BOTH, 0, Chances(death={"asking": 1.0}, late=0.0))
    job.discover()
    job.run()
    assert job.end is not None
    assert (job.end.verdict, len(job.workers)) == ("failed", 4)


def test_a_stop_ends_the_job_at_once() -> None:
    job = trains()
    job.deliver(e.EndRequested("Ctrl-C"))
    assert job.end == e.EndJob("failed", "Ctrl-C")
    assert job.driver.step(e.WorkerExited(0, 1), job.now) == []


def test_worker_that_cleans_up_too_long_is_killed() -> None:
    job = trains(replace(FOUR, leave_s=5.0))
    job.discover({A: 2, B: 1})
    leaving = worker(job, 3)
    begun = job.now
    while leaving.phase != "removed" and job.now < begun + 60.0:
        job.run(0.001)
    leaving.hangs = True
    job.run(11.0)
    assert not leaving.alive
    assert job.driver.generation == 2
