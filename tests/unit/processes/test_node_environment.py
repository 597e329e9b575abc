"""The environment of ranks on another node: its own devices, identity and cores, not those of the launcher's node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvd_kernel.processes import agent
from hvd_kernel.processes.channel.messages import StartRanks
from hvd_kernel.processes.node_environment import merged, usable_cores

BATCH = {
    "DATA": "/data",
    "SLURM_JOB_ID": "7",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "n1",
    "SLURM_CPUS_ON_NODE": "8",
    "CUDA_VISIBLE_DEVICES": "1",
    "OMP_NUM_THREADS": "4",
}
STEP = {
    "DATA": "/data",
    "SLURM_JOB_ID": "7",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "n2",
    "SLURM_STEP_ID": "3",
    "CUDA_VISIBLE_DEVICES": "0",
}


def test_a_step_has_its_own_nodes_variables() -> None:
    """Another job held device 1 of the second node; the ranks there got the number of the first node's."""
    assert merged(STEP, BATCH, is_step=True) == {**STEP, "OMP_NUM_THREADS": "4"}


def test_a_step_without_devices_has_none() -> None:
    node = {name: value for name, value in STEP.items() if name != "CUDA_VISIBLE_DEVICES"}
    assert merged(node, BATCH, is_step=True) == {**node, "OMP_NUM_THREADS": "4"}


def test_over_ssh_the_launchers_devices_are_the_default() -> None:
    carried = {"DATA": "/data", "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "4"}
    assert merged({}, BATCH) == {**carried, "CUDA_VISIBLE_DEVICES": "1"}
    assert merged({"CUDA_VISIBLE_DEVICES": "2"}, BATCH) == {**carried, "CUDA_VISIBLE_DEVICES": "2"}


def test_what_the_user_sets_for_the_ranks_wins() -> None:
    env = merged(STEP, BATCH | {"CUDA_VISIBLE_DEVICES": "5"}, ["CUDA_VISIBLE_DEVICES", "DATA"], is_step=True)
    assert env == {**STEP, "CUDA_VISIBLE_DEVICES": "5", "OMP_NUM_THREADS": "4"}


def test_an_agent_merges_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", STEP | {"SLURM_JOB_CPUS_PER_NODE": "2"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(16)})
    monkeypatch.setattr("hvd_kernel.settings.gpus.count", lambda: 4)
    launcher = {name: value for name, value in BATCH.items() if name != "OMP_NUM_THREADS"}
    order = {"command": ["true"], "cwd": "/", "ranks": [], "inherit_env": True, "is_step": True, "ranks_on_host": 2}
    env = agent._environment(StartRanks(env=launcher, allocated_cores=8, **order))
    assert {name: env[name] for name in ("SLURM_NODEID", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")} == {
        "SLURM_NODEID": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "4",
    }


@pytest.mark.parametrize(
    ("allocated", "quotas", "cores"),
    [
        (0, {}, 16),
        (8, {}, 8),
        (32, {}, 16),
        (0, {"a/b": "250000 100000"}, 3),
        (0, {"a/b": "max 100000", "a": "400000 100000", "": "600000 100000"}, 4),
        (2, {"a/b": "400000 100000"}, 2),
        (0, {"a/b": "10000 100000"}, 1),
        (0, {"a/b": "nonsense"}, 16),
    ],
)
def test_cores_are_those_of_allocation_and_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, allocated: int, quotas: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(16)})
    (tmp_path / "cgroup").write_text("1:name=systemd:/x\n0::/a/b\n")
    mount = tmp_path / "mount"
    (mount / "a" / "b").mkdir(parents=True)
    for group, quota in quotas.items():
        (mount / group / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores(allocated, mount, tmp_path / "cgroup") == cores


def test_cores_without_cgroups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert usable_cores(0, tmp_path, tmp_path / "missing") == 3
