"""Environment of the ranks of another host: variables of that node win over those of the launcher's.

A launcher passes its environment on, which also describes its own node: in a batch job, the devices that were allocated
there and the number of its node. srun passes on the environment of its caller too, with the variables of a step's own
node in place of the caller's: in a step, what the node does not set does not apply to it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

_IDENTITY = frozenset(
    {
        *("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURMD_NODENAME"),
        *("SLURM_TOPOLOGY_ADDR", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_TMPDIR"),
        *("SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"),
        *("PBS_NODENUM", "PBS_TASKNUM", "PBS_VNODENUM", "LS_JOBPID", "LSB_EFFECTIVE_RSRCREQ"),
        *("HVD_HOST", "NODE_NAME", "POD_NAME", "POD_IP", "HOST_IP"),
    }
)
_IDENTITY_PREFIXES = ("SLURM_STEP_", "SLURM_STEPID", "SLURM_SRUN_COMM_", "SLURM_CPU_BIND", "SLURM_MEM_BIND")
"""Variables that identify a node or process; never those of another node."""
_DEVICES = frozenset(
    {
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"),
    }
)
"""Variables that name devices of a node; the launcher's apply where neither the node nor a step sets them."""


def is_of_node(name: str) -> bool:
    """Return whether a variable describes a node."""
    return name in _DEVICES or _is_identity(name)


def merged(
    node: Mapping[str, str], launcher: Mapping[str, str], chosen: Collection[str] = (), *, is_step: bool = False
) -> dict[str, str]:
    """Return the environment of the ranks of a node.

    Parameters
    ----------
    node
        The environment of its agent.
    launcher
        The environment that the launcher has sent.
    chosen
        Variables of the latter that the user has set for the ranks: they win.
    is_step
        True if srun or a similar launcher has started the agent.
    """
    env = {**node, **launcher}
    for name in (name for name in launcher if is_of_node(name) and name not in chosen):
        if name in node:
            env[name] = node[name]
        elif is_step or _is_identity(name):
            del env[name]
    return env


def _is_identity(name: str) -> bool:
    return name in _IDENTITY or name.startswith(_IDENTITY_PREFIXES)


# Cores


_MOUNT = Path("/sys/fs/cgroup")


def usable_cores(allocated: int = 0, mount: Path = _MOUNT, cgroup_file: Path = Path("/proc/self/cgroup")) -> int:
    """Return the number of cores of this node that the ranks may use.

    That is the number of cores of this process, or fewer: those of the allocation, where the batch system does not
    bind its processes to them, and those of the quota of its cgroup, as a container has.

    Parameters
    ----------
    allocated
        Cores of the allocation on this node; 0: unknown.
    mount, cgroup_file
        Where cgroups are mounted, and the file that names the cgroup of this process.
    """
    limits = [len(os.sched_getaffinity(0)), *_quotas(mount, cgroup_file)]
    return max(1, min([*limits, allocated] if allocated else limits))


def _quotas(mount: Path, cgroup_file: Path) -> Iterator[int]:
    """Yield the quotas, in cores, of the cgroup (v2) of this process and of those above it."""
    try:
        path = next(line[3:] for line in cgroup_file.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return
    group = mount / path.lstrip("/")
    for folder in [group, *group.parents]:
        if not folder.is_relative_to(mount):
            return
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota.isdecimal() and period.isdecimal():
            yield math.ceil(int(quota) / int(period))
