"""Which folders a start sweeps away: those whose cluster is gone, and those that nobody came to call his own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hvd_kernel.cluster import leftovers
from hvd_kernel.cluster.folders import private_folder
from hvd_kernel.cluster.processes import CLAIM, claim

KILLED = """
import os, signal
from pathlib import Path
from hvd_kernel.cluster import launcher
from hvd_kernel.config import ClusterSpec
launcher._shared_memory_folder = lambda otherwise: otherwise
launcher.{moment} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
launcher.Launched(ClusterSpec(1))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(leftovers, "SHARED", tmp_path)
    return tmp_path


def age(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder, (then, then))


@pytest.mark.parametrize("moment", ["_shared_memory_folder", "claim"])
def test_e2_a_folder_whose_maker_was_killed_before_it_was_claimed_is_swept(place: Path, moment: str) -> None:
    command = [sys.executable, "-P", "-c", KILLED.format(moment=moment)]
    killed = subprocess.run(command, env={**os.environ, "TMPDIR": str(place)}, check=False)
    assert killed.returncode == -9
    (left,) = place.iterdir()
    leftovers.sweep()
    assert left.exists(), "it may be of a kernel that is about to claim it"
    age(left, 61.0)
    leftovers.sweep()
    assert not left.exists()


def test_e2_a_claim_that_was_begun_is_none(place: Path) -> None:
    begun = private_folder()
    (begun / CLAIM).touch()
    age(begun, 61.0)
    leftovers.sweep()
    assert not begun.exists()


def test_e3_what_is_claimed_or_used_or_not_of_our_making_stays(place: Path) -> None:
    claimed, used, foreign = private_folder(), private_folder(), place / "hvd-bench-ab3_x9qz"
    claim(claimed)
    (used / "file").touch()
    foreign.mkdir()
    for folder in (claimed, used, foreign):
        age(folder, 3600.0)
    leftovers.sweep()
    assert all(folder.exists() for folder in (claimed, used, foreign))
