"""Filling the pool and taking from it. Both are for a user who has asked for it (HVD_POOL): warm ranks hold memory."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_kernel.cluster.launcher import begun
from hvd_kernel.cluster.pool.likeness import is_plain, likeness
from hvd_kernel.cluster.supervised import Supervised
from hvd_kernel.errors import ClusterError, ConfigError
from hvd_kernel.processes.channel import attachment, messages
from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.spares import warm
from hvd_kernel.processes.spares.spare import free_memory
from hvd_kernel.processes.spares.warm import WarmCluster

_WELCOME_S = 1.0  # after it a fresh start is the better choice
_RANK_BYTES = 1 << 28  # with torch
_FREE_BYTES = 1 << 30  # left to others
_started: list[subprocess.Popen[bytes]] = []  # children of this process, as long as they live


class Taken(Supervised):
    """The supervisor of warm ranks that this kernel has taken."""

    def __init__(self, cluster: WarmCluster) -> None:
        folder = Path.cwd()  # it may be gone
        channel, pid = attachment.connect(cluster.folder)
        try:
            super().__init__(channel, pid, *map(Path, _folders(channel)))
        except BaseException:
            channel.close()
            raise
        variables = warm.of_the_front_end(os.environ)
        self._move_in = {"folder": str(folder), "variables": variables}
        self.send(messages.MoveIn(str(folder), variables))

    def up(self, ask: Callable[..., Any]) -> None:
        """Have the ranks be where the notebook is."""
        ask("move_in", None, self._move_in)


def take(spec: ClusterSpec) -> Taken | None:
    """Take warm ranks that are as fresh ones of this cluster would be; None: there are none, or they were just lost."""
    if not warm.wanted_minutes() or not is_plain(spec):
        return None
    alike = likeness(spec)
    for each in warm.clusters():
        if each.note.ready and each.note.likeness == alike:
            try:
                return Taken(each)
            except (OSError, EOFError):  # another kernel was quicker, or their time was over
                continue
    return None


def fill(spec: ClusterSpec) -> None:
    """Have ranks of this cluster wait for the next notebook, where none do and there is memory for them.

    Ranks that are wanted and cannot be started are no error: the next notebook starts its own, and hears why.
    """
    _started[:] = [each for each in _started if each.poll() is None]
    minutes = warm.wanted_minutes()
    if not minutes or not is_plain(spec) or free_memory() < _FREE_BYTES + spec.n * _RANK_BYTES:
        return
    alike = likeness(spec)
    if any(each.note.likeness == alike for each in warm.clusters()):
        return
    try:
        process, channel, *_ = begun(spec, {"likeness": alike, "minutes": minutes})
    except (ClusterError, ConfigError, OSError):
        return
    _started.append(process)
    channel.close()


def fill_beside(spec: ClusterSpec) -> None:
    """Fill on a thread of its own: who calls has no time to look around in the file system."""
    if os.environ.get("HVD_POOL"):
        threading.Thread(target=fill, args=(spec,), name="hvd-pool", daemon=True).start()


def end(cluster: WarmCluster) -> None:
    """End warm ranks, if they still wait."""
    try:
        Taken(cluster).stop()
    except (OSError, EOFError):
        return


def _folders(channel: ControlChannel) -> list[str]:
    """Wait to be let in; return the cluster's folders.

    Raises
    ------
    EOFError
        Nobody answers: another kernel has the ranks, or they are not whole.
    """
    deadline = time.monotonic() + _WELCOME_S
    while not channel.closed and is_ready(channel.fileno(), max(0.0, deadline - time.monotonic())):
        for message in channel.receive():
            if isinstance(message, messages.Attached):
                return message.folders
    raise EOFError
