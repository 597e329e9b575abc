"""Folders that a start sweeps away: those of ended clusters, and those that were never claimed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.cluster import launcher
from hvd_kernel.processes import leftovers, lifetime, open_mpi
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import CLAIM, claim
from hvd_kernel.processes.private_dir import private_folder

KILLED = """
import os, signal
from pathlib import Path
from hvd_kernel.cluster import launcher
from hvd_kernel.processes.cluster_spec import ClusterSpec
launcher.shared_memory_folder = lambda otherwise: otherwise
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


@pytest.mark.parametrize("moment", ["shared_memory_folder", "claim"])
def test_e2_unclaimed_folder_of_a_killed_process_is_swept(place: Path, moment: str) -> None:
    command = [sys.executable, "-P", "-c", KILLED.format(moment=moment)]
    killed = subprocess.run(command, env={**os.environ, "TMPDIR": str(place)}, check=False)
    assert killed.returncode == -9
    (left,) = place.iterdir()
    leftovers.sweep()
    assert left.exists(), "it may be of a kernel that is about to claim it"
    age(left, 61.0)
    leftovers.sweep()
    assert not left.exists()


def test_e2_incomplete_claim_does_not_count(place: Path) -> None:
    begun = private_folder()
    (begun / CLAIM).touch()
    age(begun, 61.0)
    leftovers.sweep()
    assert not begun.exists()


def test_e3_claimed_used_or_foreign_folders_are_kept(place: Path) -> None:
    claimed, used, foreign = private_folder(), private_folder(), place / "hvd-bench-ab3_x9qz"
    claim(claimed)
    (used / "file").touch()
    foreign.mkdir()
    for folder in (claimed, used, foreign):
        age(folder, 3600.0)
    leftovers.sweep()
    assert all(folder.exists() for folder in (claimed, used, foreign))


PLANNED = """
import sys
from hvd_kernel.launch.launchers import mpi
from hvd_kernel.launch.placement import Host
print(*mpi.plan(mpi.Order(["true"], 1, [Host("localhost", 1)], {})).folders, flush=True)
sys.stdin.read()
"""


def test_folders_of_an_mpi_job_are_swept_after_hvdrun() -> None:
    """Empty ones, of ranks that had not called MPI_Init so far, were swept after a minute by a notebook that started."""
    command = [sys.executable, "-P", "-c", PLANNED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hvdrun:
        assert hvdrun.stdout is not None
        folders = {Path(name) for name in hvdrun.stdout.readline().split()}
        try:
            for folder in folders:
                age(folder, 3600.0)
            assert not folders & {*leftovers.folders()}
            hvdrun.kill()
            hvdrun.wait()
            assert folders <= {*leftovers.folders()}
        finally:
            hvdrun.kill()
            for folder in folders:
                leftovers.remove(folder)


def segment(place: Path, *, host: str = "", uid: int | None = None, old: float = 61.0) -> Path:
    """A file as Open MPI 5 names its shared memory, with a page in it."""
    name = f"sm_segment.{host or socket.gethostname()}.{os.geteuid() if uid is None else uid}.8c5f0001.0"
    (place / name).write_bytes(bytes(4096))
    age(place / name, old)
    return place / name


def test_shared_memory_of_ranks_killed_under_mpirun_is_swept(place: Path) -> None:
    """After SIGKILL Open MPI cannot remove it, and each run used more of /dev/shm."""
    left = segment(place)
    held = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-P", "-c", held, str(left)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "mapped\n"
        leftovers.sweep()
        assert left.exists(), "a living rank's"
        rank.kill()
    leftovers.sweep()
    assert not left.exists()


@pytest.mark.parametrize(
    "other", [{"host": "elsewhere"}, {"uid": 4242}, {"old": 0.0}], ids=["another host", "another user", "just made"]
)
def test_shared_memory_of_other_users_is_kept(place: Path, other: dict[str, Any]) -> None:
    stays = segment(place, **other)
    leftovers.sweep()
    assert stays.exists()


def test_shared_memory_is_kept_if_mappings_are_hidden(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stays = segment(place)
    monkeypatch.setattr(leftovers, "_mapped", lambda: None)
    leftovers.sweep()
    assert stays.exists()


# A start that is interrupted is undone, wherever the key was pressed.


@pytest.mark.parametrize("moment", ["shared_memory_folder", "claim", "mpi_arguments", "environment"])
def test_b2_an_interrupt_while_folders_are_made_leaves_none(
    moment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launcher, moment, pressed)
    name = uuid.uuid4().hex  # other processes of this machine come and go there
    monkeypatch.setattr(open_mpi.secrets, "token_hex", lambda _: name)
    with pytest.raises(KeyboardInterrupt):
        launcher.Launched(ClusterSpec(1))
    assert list(tmp_path.iterdir()) == []
    assert not Path("/dev/shm", f"hvd-{name}").exists()


# Killing of processes that cannot be signalled, or do not exit.


@pytest.mark.parametrize("error", [ProcessLookupError, PermissionError])
def test_processes_that_cannot_be_signalled_are_skipped(monkeypatch: pytest.MonkeyPatch, error: type[OSError]) -> None:
    """A setuid child of a cell, for example, which this user may not signal."""

    def refuse(_pid: int, _number: int) -> None:
        raise error

    monkeypatch.setattr(os, "kill", refuse)
    lifetime.kill(1, signal.SIGKILL)


def test_children_that_do_not_exit_are_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child in an uninterruptible sleep (state D) exits whenever its driver lets it, or never."""
    now, killed = [0.0], set[int]()

    def sleep(seconds: float) -> None:
        now[0] += seconds
        assert now[0] < 60.0, "it would wait forever"

    monkeypatch.setattr(lifetime, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(lifetime, "children", lambda _pid: [77])
    monkeypatch.setattr(lifetime, "kill", lambda pid, _number: killed.add(pid))
    monkeypatch.setattr(os, "waitpid", lambda _pid, _flags: (0, 0))
    lifetime.kill_descendants()
    assert killed == {77}
