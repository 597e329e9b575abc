"""Warm ranks without processes: which specifications are alike, the adopted environment, the messages."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_kernel.cluster import warm_ranks
from hvd_kernel.processes import warm
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import claim, mark
from hvd_kernel.processes.limits import Limits
from hvd_kernel.processes.warm import WarmNote

NOTE = WarmNote("a" * 64, 4, time.time(), 30.0, ready=True)


def test_spec_with_other_hosts_cannot_use_warm_ranks() -> None:
    assert warm_ranks.is_plain(ClusterSpec(4))
    assert warm_ranks.is_plain(ClusterSpec(4, gpus="none", start_timeout_s=5))
    others = (
        {"hosts": "a:4"},
        {"hostfile": "f"},
        {"mpi_args": ("-v",)},
        {"limits": (Limits(cores=1.0),) * 4},
        {"on": "ray"},
    )
    assert not any(warm_ranks.is_plain(replace(ClusterSpec(4), **each)) for each in others)


def test_specs_that_differ_in_the_front_end_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    before = warm_ranks.likeness(ClusterSpec(4))
    monkeypatch.setenv("JPY_SESSION_NAME", "other.ipynb")
    monkeypatch.setenv("TERM_PROGRAM", "x")
    assert warm_ranks.likeness(ClusterSpec(4)) == before
    assert warm_ranks.likeness(ClusterSpec(3)) != before
    assert warm_ranks.likeness(ClusterSpec(4, gpus="none")) != before


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "HOROVOD_CYCLE_TIME", "MY_OWN", "PYTHONPATH", "TERMINAL"])
def test_every_other_variable_must_match(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = warm_ranks.likeness(ClusterSpec(4))
    monkeypatch.setenv(name, "1")
    assert warm_ranks.likeness(ClusterSpec(4)) != before


def test_umask_and_cores_must_match(monkeypatch: pytest.MonkeyPatch) -> None:
    before = warm_ranks.likeness(ClusterSpec(4))
    old = os.umask(0o077)
    try:
        assert warm_ranks.likeness(ClusterSpec(4)) != before
    finally:
        os.umask(old)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert (warm_ranks.likeness(ClusterSpec(4)) != before) is (len(cores) > 1)
    finally:
        os.sched_setaffinity(0, cores)
    assert warm_ranks.likeness(ClusterSpec(4)) == before


def test_installed_packages_must_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    before = warm_ranks.likeness(ClusterSpec(4))
    os.utime(packages, ns=(1, 1))
    assert warm_ranks.likeness(ClusterSpec(4)) != before


def test_adopted_rank_keeps_nothing_of_the_other_front_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"JPY_SESSION_NAME": "a", "TERM": "dumb", "OMP_NUM_THREADS": "2"})
    monkeypatch.chdir(Path.cwd())
    warm.move_in(str(tmp_path), {"JPY_SESSION_NAME": "b"})
    assert os.environ == {"JPY_SESSION_NAME": "b", "OMP_NUM_THREADS": "2", "PWD": str(tmp_path)}
    assert Path.cwd() == tmp_path


def test_notes_of_living_supervisors_are_found_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, since in (("hvd-a", 2.0), ("hvd-b", 1.0), ("hvd-gone", 0.0), ("hvd-other", 0.0)):
        (tmp_path / name).mkdir()
        claim(tmp_path / name)
        warm.write(tmp_path / name, replace(NOTE, since=since))
    (tmp_path / "hvd-gone" / "holder").write_text(mark(os.getpid()).replace(str(os.getpid()), "999999999", 1))
    (tmp_path / "hvd-other" / "warm").write_text('{"of": "another version"}')
    found = warm.clusters()
    assert [each.folder.name for each in found] == ["hvd-b", "hvd-a"]
    warm.remove(tmp_path / "hvd-b")
    assert [each.folder.name for each in warm.clusters()] == ["hvd-a"]


def test_message_gives_number_and_remaining_time() -> None:
    one = warm.WarmCluster(replace(NOTE, since=time.time() - 600), Path("/tmp/hvd-a"), "4711:1:2:3")
    assert one.sentence == "4 warm ranks, ready, for 20 more min (process 4711)"
    young = warm.WarmCluster(replace(NOTE, n=1, since=time.time(), ready=False), Path("/tmp/hvd-a"), "4711:1:2:3")
    assert young.sentence == "1 warm rank, getting ready, for 30 more min (process 4711)"


def test_no_warm_ranks_are_started_if_memory_is_low(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setenv("HVD_POOL", "30")
    monkeypatch.setattr(warm_ranks, "begun", lambda *what: asked.append(what))
    monkeypatch.setattr(warm_ranks, "free_memory", lambda: (1 << 30) + 4 * (1 << 28) - 1)
    warm_ranks.fill(ClusterSpec(4))
    assert asked == []
