"""Likeness of ranks: a digest of what a rank takes over from the kernel that starts it.

Warm ranks stand for fresh ones only where nobody could tell them apart: with the same interpreter, packages,
environment, limits and devices. Whatever differs, the notebook starts ranks of its own.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
from pathlib import Path

from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import HOLDER
from hvd_kernel.processes.spares import warm
from hvd_kernel.settings import gpus
from hvd_kernel.version import __version__

_OF_THE_PROCESS = ("Umask", "Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed")
"""Lines of /proc/self/status that children inherit."""


def is_plain(spec: ClusterSpec) -> bool:
    """Tell whether a cluster is one that a pool may hold: on this host, started by mpiexec as we start it."""
    return spec == ClusterSpec(spec.n, gpus=spec.gpus)


def likeness(spec: ClusterSpec) -> str:
    """Return the digest of what ranks of this cluster would be, started by this process now."""
    chosen = gpus.checked(spec.gpus or os.environ.get(gpus.CHOICE, "") or "auto")
    known = (__version__, sys.executable, sys.prefix, spec.n, chosen, _packages(), _environment(), *_process())
    return hashlib.sha256(repr(known).encode(errors="surrogateescape")).hexdigest()


def _packages() -> list[tuple[str, int]]:
    """Return the folders of packages, and when each last got or lost one: pip leaves its traces there."""
    folders = [Path(entry) for entry in sys.path if Path(entry).is_absolute() and entry.endswith("-packages")]
    return [(str(folder), folder.stat().st_mtime_ns) for folder in folders if folder.is_dir()]


def _environment() -> list[tuple[str, str]]:
    own = {HOLDER, "HVD_POOL", *warm.of_the_front_end(os.environ)}
    return sorted((name, value) for name, value in os.environ.items() if name not in own)


def _process() -> tuple[object, ...]:
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    status = [(name, value.strip()) for name, _, value in lines if name in _OF_THE_PROCESS]
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    priority = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))
    return status, limits, priority, Path("/proc/self/cgroup").read_text()
