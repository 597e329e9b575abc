"""Warm ranks: start a cluster in advance, and adopt it for the user's next notebook. Enabled by HVD_POOL.

Terms.
  likeness   digest of everything that a rank inherits from the kernel that starts it: interpreter, packages,
             environment, limits and devices. A notebook adopts warm ranks only if they have the likeness of the ranks
             that it would start
"""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_kernel.cluster.launcher import Supervised, begun
from hvd_kernel.errors import ClusterError, ConfigError
from hvd_kernel.processes import warm
from hvd_kernel.processes.channel import attachment, messages
from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import HOLDER
from hvd_kernel.processes.limits import free_memory
from hvd_kernel.processes.warm import WarmCluster
from hvd_kernel.settings import gpus
from hvd_kernel.version import __version__

_WELCOME_S = 1.0  # for an answer; after that, a fresh start is faster
_RANK_BYTES = 1 << 28  # with torch
_FREE_BYTES = 1 << 30  # memory to leave free
_started: list[subprocess.Popen[bytes]] = []  # living children of this process


class AdoptedRanks(Supervised):
    """The supervisor of warm ranks that this kernel has adopted."""

    def __init__(self, cluster: WarmCluster) -> None:
        folder = Path.cwd()  # raises if it was removed
        channel, pid = attachment.connect(cluster.folder)
        try:
            super().__init__(channel, pid, *map(Path, _folders(channel)))
        except BaseException:
            channel.close()
            raise
        variables = warm.of_the_front_end(os.environ)
        self._move_in = {"folder": str(folder), "variables": variables}
        self.send(messages.MoveIn(str(folder), variables))

    def on_ready(self, ask: Callable[..., Any]) -> None:
        """Change the ranks' working directory and variables to the notebook's."""
        ask("move_in", None, self._move_in)


def adopt(spec: ClusterSpec) -> AdoptedRanks | None:
    """Adopt warm ranks with the likeness of this cluster; None if there are none, or they were just lost."""
    if not warm.pool_minutes() or not is_plain(spec):
        return None
    digest = likeness(spec)
    for cluster in warm.clusters():
        if cluster.note.ready and cluster.note.likeness == digest:
            try:
                return AdoptedRanks(cluster)
            except (OSError, EOFError):  # another kernel has adopted them, or their time limit has passed
                continue
    return None


def fill(spec: ClusterSpec) -> None:
    """Start warm ranks like those of this cluster, unless there are some already or memory is short.

    A failure to start them is ignored: the next notebook starts its own ranks and reports the error.
    """
    _started[:] = [process for process in _started if process.poll() is None]
    minutes = warm.pool_minutes()
    if not minutes or not is_plain(spec) or free_memory() < _FREE_BYTES + spec.n * _RANK_BYTES:
        return
    digest = likeness(spec)
    if any(cluster.note.likeness == digest for cluster in warm.clusters()):
        return
    try:
        process, channel, *_ = begun(spec, {"likeness": digest, "minutes": minutes})
    except (ClusterError, ConfigError, OSError):
        return
    _started.append(process)
    channel.close()


def fill_in_background(spec: ClusterSpec) -> None:
    """Call ``fill`` in a thread, because it searches the file system and the caller must not block."""
    if os.environ.get("HVD_POOL"):
        threading.Thread(target=fill, args=(spec,), name="hvd-pool", daemon=True).start()


def end(cluster: WarmCluster) -> None:
    """Stop warm ranks that no kernel has adopted."""
    try:
        AdoptedRanks(cluster).stop()
    except (OSError, EOFError):
        return


def _folders(channel: ControlChannel) -> list[str]:
    """Wait for admission; return the cluster's folders.

    Raises
    ------
    EOFError
        If the supervisor does not admit this kernel: another kernel has the ranks, or one has died.
    """
    deadline = time.monotonic() + _WELCOME_S
    while not channel.closed and is_ready(channel.fileno(), max(0.0, deadline - time.monotonic())):
        for message in channel.receive():
            if isinstance(message, messages.Attached):
                return message.folders
    raise EOFError


_OF_THE_PROCESS = ("Umask", "Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed")
"""Lines of /proc/self/status that children inherit."""


def is_plain(spec: ClusterSpec) -> bool:
    """Return whether a pool may hold this cluster: on this host, started by mpiexec, without other options."""
    return spec == ClusterSpec(spec.n, gpus=spec.gpus)


def likeness(spec: ClusterSpec) -> str:
    """Return the likeness of ranks of this cluster if this process started them now."""
    chosen = gpus.checked(spec.gpus or os.environ.get(gpus.CHOICE, "") or "auto")
    traits = (__version__, sys.executable, sys.prefix, spec.n, chosen, _packages(), _environment(), *_process())
    return hashlib.sha256(repr(traits).encode(errors="surrogateescape")).hexdigest()


def _packages() -> list[tuple[str, int]]:
    """Return the folders of packages with their modification times, which pip changes."""
    folders = [Path(entry) for entry in sys.path if Path(entry).is_absolute() and entry.endswith("-packages")]
    return [(str(folder), folder.stat().st_mtime_ns) for folder in folders if folder.is_dir()]


def _environment() -> list[tuple[str, str]]:
    ignored = {HOLDER, "HVD_POOL", *warm.of_the_front_end(os.environ)}
    return sorted((name, value) for name, value in os.environ.items() if name not in ignored)


def _process() -> tuple[object, ...]:
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    status = [(name, value.strip()) for name, _, value in lines if name in _OF_THE_PROCESS]
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    priority = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))
    return status, limits, priority, Path("/proc/self/cgroup").read_text()
