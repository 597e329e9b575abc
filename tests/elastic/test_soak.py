"""Random successive faults in one elastic job: deaths, stops, ranks and hosts that leave and join; rows 21 to 23."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.elastic_soak import Soak

pytestmark = [pytest.mark.mp, pytest.mark.nightly]


def test_optimizer_state_moves_from_two_hosts_to_one(tmp_path: Path) -> None:
    """Only the new rank had its gradients in shared memory and waited for the other to agree, forever."""
    apart, together = {"localhost": 1, "127.0.0.1": 1}, {"localhost": 2}
    soaked = Soak(tmp_path, 1, hosts=apart).move(apart, together, apart)
    assert soaked.same, soaked.summary()
    assert (soaked.lost, soaked.more, soaked.left) == (0, 0, 0), soaked.summary()


def test_slots_are_added_after_a_leaving_rank_has_exited(tmp_path: Path) -> None:
    """The slot was never removed: the job left it empty, as after a requested exit, and the soak test waited for it."""
    soak = Soak(tmp_path, 1, hosts={"localhost": 1, "127.0.0.1": 2})
    words, env = [sys.executable, "-c", "input()", "soaking.py"], os.environ | {soak.mark: "1", "HVD_WORKER": "2"}
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as stays:
        (tmp_path / "members").write_text(f"{stays.pid} 127.0.0.1 0")
        soak.leaving[os.getpid()] = "localhost"
        assert not soak._is_done("come")
        assert soak.hosts == {"localhost": 1, "127.0.0.1": 2}
        soak._let_slots_go()
        assert (soak.leaving, soak.hosts) == ({}, {"localhost": 0, "127.0.0.1": 2})
        assert not soak._is_done("come")  # the discovery has not said yet that the slot has gone
        (tmp_path / "told").write_text("127.0.0.1:2\n")
        assert soak._is_done("come")
        assert soak.hosts == {"localhost": 2, "127.0.0.1": 2}


def test_training_with_faults_ends_with_identical_bits(tmp_path: Path) -> None:
    soaked = Soak(tmp_path, 5).run(8)
    assert soaked.same, soaked.summary()
    assert (soaked.lost, soaked.more, soaked.left) == (0, 0, 0), soaked.summary()
    assert soaked.faults["kill"], "nobody was killed"
    assert len(soaked.sizes) > 1, "no size has changed"


def test_training_with_spares_ends_with_identical_bits(tmp_path: Path) -> None:
    soaked = Soak(tmp_path, 6, spares=1).run(8)
    assert soaked.is_good, soaked.summary()
    assert soaked.faults["kill"], "nobody was killed"
