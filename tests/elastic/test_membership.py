"""Elastic jobs whose hosts are added and removed, with two names of this machine as hosts: rows 1 to 3, 8 to 16 and 20."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.elastic_job import BOTH, ElasticJob
from hvdtest.hvdrun import NIGHTLY

pytestmark = [pytest.mark.mp, pytest.mark.usefixtures("mark")]

SIZES = ("-np", "2", "--min-np", "2", "--max-np", "4")
MOVES = {0: "localhost:2", 1: "localhost:2 127.0.0.1:2", 2: "127.0.0.1:2"}


def test_job_grows_loses_a_rank_and_moves_to_another_host(tmp_path: Path) -> None:
    """The smoke of the default tier: rows 2 and 4 in one."""
    job = ElasticJob(
        tmp_path, epochs=4, waits=(0, 2), exits={"2,3": {1: "kill"}}, schedule=MOVES | {2: MOVES[1], 3: MOVES[2]}
    )
    ended = job.run(*SIZES)
    ended.trained(2, 4, 4, 2)
    assert ended.column("worker") == [0, 0, 0, 2]
    assert ended.column("workers") == [[0, 1], [0, 1, 2, 3], [0, 4, 2, 3], [2, 3]]
    assert ended.column("host") == ["localhost", "localhost", "localhost", "127.0.0.1"]
    assert ended.column("local") == [[0, 2, 0, 1], [0, 2, 0, 2], [0, 2, 0, 2], [0, 2, 0, 1]]
    assert ended.column("local_ranks") == ended.column("slots")
    assert ended.column("generation") == [1, 2, 3, 4]
    assert ended.err.count("has failed") == 1, "those that leave end quietly"
    assert "rank 1 (localhost, slot 1) has failed: killed (SIGKILL)" in ended.err


@NIGHTLY
def test_1_nothing_happens(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path).run("-np", "4", "--min-np", "2", "--max-np", "4", "-H", BOTH)
    ended.trained(4, 4, 4)
    assert (ended.column("worker"), ended.column("generation")) == ([0, 0, 0], [1, 1, 1])
    assert ended.err == ""


@NIGHTLY
@pytest.mark.parametrize("slots", [2, 1])
def test_2_and_3_host_is_added_and_the_first_one_removed(tmp_path: Path, slots: int) -> None:
    schedule = {lines: hosts.replace(":2", f":{slots}") for lines, hosts in MOVES.items()}
    job = ElasticJob(tmp_path, waits=(0, 1), schedule=schedule)
    ended = job.run("-np", str(slots), "--min-np", str(slots), "--max-np", str(2 * slots))
    ended.trained(slots, 2 * slots, slots)
    assert ended.column("worker") == [0, 0, slots]
    assert ended.column("host") == ["localhost", "localhost", "127.0.0.1"]
    assert ended.column("generation") == [1, 2, 3]
    assert "has failed" not in ended.err


@NIGHTLY
@pytest.mark.parametrize(("limit", "lines"), [(1, 2), (2, 3)])
def test_8_the_reset_limit_ends_the_job(tmp_path: Path, limit: int, lines: int) -> None:
    ended = ElasticJob(tmp_path, waits=(0, 1), schedule=MOVES).run(*SIZES, "--reset-limit", str(limit))
    assert len(ended.lines) == lines, ended.told
    assert ended.status == (lines < 3), ended.told
    assert (f"--reset-limit {limit} is reached" in ended.err) is (lines < 3), ended.told


@NIGHTLY
def test_9_slot_is_reused_after_its_cooldown(tmp_path: Path) -> None:
    job = ElasticJob(tmp_path, epochs=5, waits=(1, 3), exits={"1,0": {3: "kill"}, "3,0": {4: "kill"}})
    ended = job.run("-np", "4", "--min-np", "2", "-H", BOTH, "--blacklist-cooldown-range", "1", "4")
    ended.trained(4, 3, 4, 3, 4)
    assert ended.column("worker") == [0] * 5, "rank 0 never moves"
    assert ended.column("workers")[-1] == [0, 1, 2, 5]
    first, second = [
        float(line.split("left out for ")[1].split()[0]) for line in ended.err.splitlines() if "left out" in line
    ]
    assert 1 <= first <= second <= 4


@NIGHTLY
def test_10_hosts_beyond_max_np_change_nothing(tmp_path: Path) -> None:
    schedule = {0: "localhost:2", 1: "localhost:2 127.0.0.1:2", 2: "localhost:2"}
    ended = ElasticJob(tmp_path, looks=(0, 1), schedule=schedule).run("-np", "2", "--min-np", "2", "--max-np", "2")
    ended.trained(2, 2, 2)
    assert ended.column("generation") == [1, 1, 1]
    assert "initialized again" not in ended.err


@NIGHTLY
def test_11_discovery_script_failing_first_ends_the_job(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, schedule={0: "!no such zone"}).run(*SIZES)
    assert (ended.status, ended.lines) == (1, [])
    assert "host discovery has failed" in ended.err
    assert "exit status 3" in ended.err
    assert "no such zone" in ended.err


@NIGHTLY
def test_11_later_script_failure_keeps_the_last_hosts(tmp_path: Path) -> None:
    schedule = {0: "localhost:2", 1: "!no such zone", 2: "localhost:2"}
    ended = ElasticJob(tmp_path, looks=(0, 1), schedule=schedule).run(*SIZES)
    ended.trained(2, 2, 2)
    assert ended.err.count("no such zone") == 1


@NIGHTLY
def test_12_job_starts_once_hosts_are_available(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, epochs=1, schedule={0: ["", "", "", "localhost:2"]}).run(*SIZES)
    ended.trained(2)


@NIGHTLY
def test_13_slots_of_a_host_are_removed_and_added_again(tmp_path: Path) -> None:
    job = ElasticJob(tmp_path, waits=(0, 1), schedule={0: "localhost:4", 1: "localhost:2", 2: "localhost:4"})
    ended = job.run("-np", "4", "--min-np", "2", "--max-np", "4")
    ended.trained(4, 2, 4)
    assert ended.column("workers") == [[0, 1, 2, 3], [0, 1], [0, 1, 4, 5]]
    assert "has failed" not in ended.err


@NIGHTLY
def test_14_all_hosts_are_replaced_at_once(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, waits=(0,), schedule={0: "localhost:2", 1: "127.0.0.1:2"}).run(*SIZES)
    assert ended.status == 1, ended.told
    assert len(ended.lines) == 1
    assert "No hosts from previous set remaining, unable to broadcast state" in ended.err


@NIGHTLY
def test_15_fewer_slots_than_min_np_for_a_while(tmp_path: Path) -> None:
    """Horovod's ranks wait forever here: the old ones skip the sync that the new one is in."""
    schedule = {0: "localhost:1 127.0.0.1:1", 1: ["localhost:1"] * 20 + ["localhost:2"]}
    ended = ElasticJob(tmp_path, waits=(0,), schedule=schedule).run("-np", "2", "--min-np", "2")
    ended.trained(2, 2, 2)
    assert ended.column("workers")[-1] == [0, 2]
    assert "waiting for 2 slots, there are 1" in ended.err


@NIGHTLY
def test_16_rank_that_exits_with_0_leaves_the_job(tmp_path: Path) -> None:
    ended = ElasticJob(tmp_path, exits={"1,0": {3: "exit0"}}).run("-np", "4", "--min-np", "2", "-H", BOTH)
    ended.trained(4, 3, 3)
    assert "has failed" not in ended.err


@NIGHTLY
def test_20_failure_while_a_host_is_added(tmp_path: Path) -> None:
    """Both within the last call: one reset where possible, two at most."""
    job = ElasticJob(tmp_path, epochs=4, waits=(1,), exits={"1,0": {1: "kill"}}, schedule={0: MOVES[0], 1: MOVES[1]})
    ended = job.run(*SIZES)
    assert ended.status == 0, ended.told
    assert ended.column("done") == [10, 20, 30, 40], ended.told
    assert ended.column("size")[-1] == 4, ended.told
    assert ended.column("generation")[-1] <= 3, ended.told


@NIGHTLY
def test_20_two_changes_within_a_second_are_one_reset(tmp_path: Path) -> None:
    schedule = {0: "localhost:1", 1: ["localhost:2", "localhost:2 127.0.0.1:1", "localhost:2 127.0.0.1:2"]}
    ended = ElasticJob(tmp_path, waits=(0,), schedule=schedule).run("-np", "1", "--min-np", "1", "--max-np", "4")
    ended.trained(1, 4, 4)
    assert ended.column("generation") == [1, 2, 2]
