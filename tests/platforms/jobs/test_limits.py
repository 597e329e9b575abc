"""Limits of ranks: cores, memory, mechanisms, and the report of a rank that exceeds them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import lines_of

from hvd_kernel.formatting.units import binary_size
from hvd_kernel.launch.job_run import Job, launch
from hvd_kernel.processes import limits
from hvd_kernel.processes.limits import Confinement, Limits, cores_of, killed_for, threads, used

GIB = 2**30
TREE = {1: [2, 3], 2: [4], 3: [], 4: []}


@pytest.mark.parametrize(
    ("number", "cores", "there", "wanted"),
    [
        (0, None, range(4), None),
        (0, 4, range(4), None),
        (0, 1, range(4), {0}),
        (3, 1, range(4), {3}),
        (4, 1, range(4), {0}),  # begins again
        (1, 2, range(4), {2, 3}),
        (1, 1.5, range(4), {2, 3}),  # whole cores
        (0, 0.25, (5, 9), {5}),
        (1, 3, range(4), {3, 0, 1}),
    ],
)
def test_ranks_get_their_cores_one_after_another(number: int, cores: float | None, there, wanted) -> None:
    assert cores_of(number, Limits(cores), list(there)) == wanted


def test_rank_has_a_thread_per_whole_core() -> None:
    assert [threads(Limits(cores)) for cores in (None, 0.5, 1, 2.5)] == [None, 1, 1, 2]


def test_memory_is_private_pages_of_all_and_shared_ones_once(tmp_path: Path) -> None:
    for pid, (private, shared) in {1: (100, 40), 2: (10, 50), 4: (1, 0)}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nRssAnon:\t  {private} kB\nRssShmem:\t  {shared} kB\n")
    assert used(1, TREE.__getitem__, tmp_path) == (111 + 50) * 1024, "3 has ended meanwhile"


def test_sizes_are_formatted_in_common_units() -> None:
    told = [binary_size(number) for number in (0, 512, 2**20, 1.02 * GIB, 256 * GIB, 3 * 2**40)]
    assert told == ["0 B", "512 B", "1 MiB", "1.02 GiB", "256 GiB", "3 TiB"]
    assert killed_for(int(1.02 * GIB), GIB) == "killed for memory: 1.02 GiB of its limit of 1 GiB"


@pytest.fixture
def fake_cgroup(tmp_path: Path) -> Path:
    """A tree of files that stands for cgroup v2, which this machine need not have."""
    group = tmp_path / "slice"
    group.mkdir()
    (group / "cgroup.subtree_control").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "self").write_text("4:memory:/old\n0::/slice\n")
    return tmp_path


def test_cgroup_is_used_if_its_controllers_are_delegated(fake_cgroup: Path) -> None:
    own = fake_cgroup / "self"
    assert limits.writable_cgroup(fake_cgroup, own) == fake_cgroup / "slice"
    (fake_cgroup / "slice/cgroup.subtree_control").write_text("cpu\n")
    assert limits.writable_cgroup(fake_cgroup, own) is None, "no memory: half of the limits would be none"
    own.write_text("4:memory:/old\n")
    assert limits.writable_cgroup(fake_cgroup, own) is None, "version 1"


def test_cgroup_has_the_limits_and_reports_killed_processes(fake_cgroup: Path) -> None:
    group = limits.make_cgroup(fake_cgroup / "slice", "hvd-1-0", 1.5, 2 * GIB)
    assert (group / "cpu.max").read_text() == "150000 100000"
    assert (group / "memory.max").read_text() == str(2 * GIB)
    assert (group / "memory.oom.group").read_text() == "1"
    (group / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 0\n")
    assert limits.peak_if_killed(group) is None
    (group / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 3\n")
    assert limits.peak_if_killed(group) == 2 * GIB, "an older kernel has no memory.peak"
    (group / "memory.peak").write_text(f"{2 * GIB + 4096}\n")
    assert limits.peak_if_killed(group) == 2 * GIB + 4096


def test_rank_without_limits_is_unchanged() -> None:
    free = Confinement(0, Limits(), lambda _pid: [])
    assert not free.is_polled
    assert not free.exceeded(os.getpid())
    assert not free.close()


GREEDY = """
import os, sys
rank = int(os.environ["HOROVOD_RANK"])
print(len(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"], flush=True)
if rank == 1:
    child = os.fork()  # what it starts counts too
    if child == 0:
        sys.stdout = None
    held = []
    while True:
        held.append(b"x" * (4 << 20))
os.read(os.eventfd(0), 8)
"""


def test_rank_over_its_memory_limit_is_killed_and_named(capfd: pytest.CaptureFixture[str]) -> None:
    limits = (Limits(1), Limits(1, 256 * 2**20))
    outcome = launch(Job([sys.executable, "-c", GREEDY], 2, limits=limits))
    out, err = capfd.readouterr()
    assert [lines_of(out, rank) for rank in range(2)] == [["1 1"], ["1 1"]]
    assert (outcome.failed, outcome.status) == (1, 128 + 9)
    said = re.fullmatch(
        r"hvdrun: rank 1 failed \(RankDied: (killed for memory: .* of its limit of 256 MiB)\); all .*\n", err
    )
    assert said, err
    assert outcome.reason == said[1]
