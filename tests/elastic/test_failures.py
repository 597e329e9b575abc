"""Elastic jobs whose ranks fail: rows 4 to 7, 16 to 19 and 25 of the scenarios."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hvdtest.elastic_job import BOTH, ElasticJob

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.usefixtures("mark")]

FOUR = ("-np", "4", "--min-np", "2", "--max-np", "4", "-H", BOTH)


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_4_new_process_replaces_rank_0_in_its_slot(tmp_path: Path, how: str) -> None:
    ended = ElasticJob(tmp_path, exits={"1,0": {0: how}}).run(*FOUR)
    ended.trained(4, 4, 4)
    assert ended.column("workers") == [[0, 1, 2, 3], [1, 4, 2, 3], [1, 4, 2, 3]]
    assert ended.column("worker") == [0, 1, 1], "the oldest process that is left"
    assert ended.column("local_ranks") == ended.column("slots") == [[0, 1, 0, 1], [1, 0, 0, 1], [1, 0, 0, 1]]
    assert ended.column("generation") == [1, 2, 2]


def test_4_rank_is_replaced_on_a_single_host(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, exits={"1,5": {0: "kill"}}).run("-np", "2", "--min-np", "1")
    ended.trained(2, 2, 2)
    assert ended.column("workers") == [[0, 1], [1, 2], [1, 2]]
    assert ended.column("local_ranks") == ended.column("slots") == [[0, 1], [1, 0], [1, 0]]


@pytest.mark.parametrize("commit_every", [1, 4])
def test_failure_restores_the_last_commit(tmp_path: Path, commit_every: int) -> None:
    job = ElasticJob(tmp_path, exits={"1,7": {2: "kill"}}, commit_every=commit_every)
    ended = job.run(*FOUR)
    ended.trained(4, 4, 4)
    per_epoch = 10 // commit_every + 1
    assert ended.column("commits") == [per_epoch * (epoch + 1) - 1 for epoch in range(3)]


def test_5_first_failure_is_named_when_all_ranks_fail(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, exits={"1,0": dict.fromkeys(range(4), "raise")}).run(*FOUR)
    assert (ended.status, len(ended.lines)) == (1, 1), ended.told
    last = ended.err.splitlines()[-1]
    assert "all workers have failed" in last
    rank = last.removeprefix("hvdrun: rank ")[0]
    assert f"[{rank}]<stderr>:ValueError: worker {rank} fails as planned" in ended.err


BOTH_FAIL = {"1,0": {0: "kill", 2: "kill"}}


def test_6_one_rank_of_each_host_fails(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, exits=BOTH_FAIL).run(*FOUR)
    ended.trained(4, 4, 4)
    assert sorted(ended.column("workers")[-1]) == [1, 3, 4, 5]
    assert ended.column("worker")[-1] == 1


def test_6_job_ends_when_no_restart_is_left(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, exits=BOTH_FAIL).run(*FOUR, "--max-restarts", "0")
    assert (ended.status, len(ended.lines)) == (137, 1), ended.told
    assert "--max-restarts 0 is all that may" in ended.err


def test_7_too_few_slots_end_the_job_after_the_elastic_timeout(tmp_path: Path) -> None:
    job = ElasticJob(tmp_path, exits={"1,0": {0: "raise"}})
    flags = ("-np", "4", "--min-np", "4", "-H", BOTH, "--blacklist-cooldown-range", "60", "100")
    ended = job.run(*flags, "--elastic-timeout", "2")
    assert (ended.status, len(ended.lines)) == (1, 1), ended.told
    assert "waited for 4 slots, had 3" in ended.err


def test_17_briefly_stopped_rank_continues(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, exits={"1,0": {3: "pause"}}).run(*FOUR)
    ended.trained(4, 4, 4)
    assert ended.column("generation") == [1, 1, 1]


def test_17_permanently_stopped_rank_is_replaced(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, exits={"1,0": {3: "stop"}}).run(*FOUR, HVD_STOP_ABORT="1")
    ended.trained(4, 4, 4)
    assert ended.column("workers")[-1] == [0, 1, 2, 4]
    assert "has failed: it has been stopped (SIGSTOP or a debugger)" in ended.err


@pytest.mark.parametrize(
    ("exits", "stopped"),
    [({"1,0": {1: "exit0"}, "2,0": {0: "stop"}}, {0}), ({"1,0": {0: "stop", 1: "stop"}}, {0, 1})],
    ids=["the only one that is left", "all"],
)
def test_17_rank_stopped_outside_collectives_fails(
    tmp_path: Path, exits: dict[str, dict[int, str]], stopped: set[int]
) -> None:
    ended = ElasticJob(tmp_path, exits=exits).run("-np", "2", "--min-np", "1", HVD_STOP_ABORT="1")
    assert ended.status == 137, ended.told
    said = re.findall(r"rank (\d) \(localhost, slot \d\) has failed: it has been stopped \(SIGSTOP", ended.err)
    assert {*map(int, said)} == stopped, ended.told


def test_18_rank_hanging_in_the_rendezvous_is_replaced(tmp_path: Path) -> None:
    job = ElasticJob(tmp_path, exits={"1,0": {0: "kill", 3: "hang"}})
    ended = job.run(*FOUR, HVD_HANG_TIMEOUT="2")
    ended.trained(4, 4, 4)
    assert ended.column("worker")[-1] == 1
    assert not {0, 3} & set(ended.column("workers")[-1])
    [line] = [line for line in ended.err.splitlines() if "it has not come to a reset" in line]
    assert "rank 3" in line
    assert "hang_here(): time.sleep(seconds)" in line


def test_rank_hanging_outside_a_collective_is_named_and_replaced(tmp_path: Path) -> None:
    """The stall ends their operation, and then they wait for it in a reset."""
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    ended = ElasticJob(tmp_path, exits={"1,0": {3: "hang"}}).run(*FOUR, HVD_HANG_TIMEOUT="2", **stall)
    ended.trained(4, 4, 4)
    assert ended.column("workers") == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 4]]
    [line] = [line for line in ended.err.splitlines() if "it has not come to a reset" in line]
    assert "rank 3" in line
    assert "hang_here(): time.sleep(seconds)" in line


@pytest.mark.parametrize("place", ["sync", "callback"])
@pytest.mark.parametrize("worker", [1, 3])
def test_19_a_survivor_dies_during_the_reset(tmp_path: Path, place: str, worker: int) -> None:
    ended = ElasticJob(tmp_path, exits={"1,0": {0: "kill"}, place: {worker: "kill"}}).run(*FOUR)
    ended.trained(4, 4, 4)
    assert not {0, worker} & set(ended.column("workers")[-1])


@pytest.mark.parametrize("place", ["import", "init", "first sync"])
def test_19_new_rank_dies_during_the_reset(tmp_path: Path, place: str) -> None:
    ended = ElasticJob(tmp_path, exits={"1,0": {0: "kill"}, place: {4: "kill"}}).run(*FOUR)
    ended.trained(4, 4, 4)
    assert ended.column("workers")[-1] == [1, 5, 2, 3]


def test_rank_is_killed_while_a_new_rank_starts(tmp_path: Path) -> None:
    """The other rank continues without it: the new rank waits for two epochs that it completes."""
    exits = {"import": {3: "late:3"}, "1,5": {1: "kill"}}
    schedule = {0: "localhost:3", 1: "localhost:3 127.0.0.1:1"}
    job = ElasticJob(tmp_path, epochs=4, starts=[0], waits=[2], exits=exits, schedule=schedule)
    ended = job.run("-np", "3", "--min-np", "2", "--blacklist-cooldown-range", "600", "600")
    ended.trained(3, 2, 2, 3)
    assert ended.column("generation") == [1, 2, 2, 3]
    assert ended.column("workers") == [[0, 1, 2], [0, 2], [0, 2], [0, 2, 3]]


def test_25_collective_before_elastic_run_is_an_error(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, exits={"1,0": {0: "kill"}, "init": {4: "collective"}}).run(*FOUR)
    ended.trained(4, 4, 4)
    assert ended.column("workers")[-1] == [1, 5, 2, 3]
    assert "too early" in ended.err
