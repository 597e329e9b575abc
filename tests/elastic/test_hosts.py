"""Elastic jobs on hosts that ssh reaches: a stand-in for ssh runs its command here, for each name a host of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.elastic_job import ElasticJob

pytestmark = [pytest.mark.mp, pytest.mark.nightly]

Ssh = tuple[dict[str, str], Path]


def test_ranks_on_other_hosts_fail_and_are_replaced(tmp_path: Path, ssh: Ssh) -> None:
    job = ElasticJob(tmp_path, exits={"1,0": {0: "kill"}, "2,0": {1: "raise"}})
    ended = job.run("-np", "3", "--min-np", "2", "-H", "a:2,b:1", **ssh[0])
    ended.trained(3, 3, 3)
    assert ended.column("workers")[-1] == [2, 3, 4]
    assert ended.column("host")[-1] == "b"
    assert ended.column("local")[-1] == [0, 1, 0, 2]


def test_a_host_that_cannot_be_reached_is_left_out(tmp_path: Path, ssh: Ssh) -> None:
    schedule = {0: "a:2", 1: "a:2 closed:1 b:1"}
    ended = ElasticJob(tmp_path, waits=(0,), schedule=schedule).run("-np", "2", "--min-np", "2", **ssh[0])
    assert ended.status == 0, ended.told
    assert ended.column("size") == [2, 3, 3], ended.told
    assert "closed is lost: host closed cannot be used: ssh cannot log in there" in ended.err, ended.told


def test_an_agent_that_is_killed_is_a_host_that_is_lost(tmp_path: Path, ssh: Ssh) -> None:
    job = ElasticJob(tmp_path, exits={"1,0": {0: "agent"}})
    ended = job.run("-np", "3", "--min-np", "2", "-H", "a:1,b:2", **ssh[0])
    ended.trained(3, 2, 2)
    assert ended.column("workers")[-1] == [1, 2]
    assert "a is lost: its agent has ended" in ended.err, ended.told
