"""Processes that can take a dead rank's place, as the supervisor keeps them: spares that wait, ranks that were spares.

Words.
  spare        has imported what a rank needs ("warm"), or does so in idle time; it waits to be told who to be
  replacement  was told; it registers as that rank and ends with the supervisor, as every process here
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hvd_kernel.processes.channel.control_channel import is_ready
from hvd_kernel.processes.lifetime import kill

_ROOM_BYTES = 1 << 30  # left free, or no spare is started: it takes about a quarter of that with torch


class Spare:
    """One process. Started from a thread that lives as long as the supervisor: it dies with that thread."""

    def __init__(self, ranks: int, haste: str) -> None:
        self._link, theirs = socket.socketpair()  # who to be, with the keys, comes over it: no argument, no file
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", "hvd_kernel.worker", haste, str(ranks)],
                stdin=theirs.fileno(),
                stdout=sys.stderr.fileno(),
            )
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self._link.setblocking(False)
        self._warm = False

    @property
    def warm(self) -> bool:
        """True once its imports are done."""
        if not self._warm:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                self._warm = self._link.recv(64) != b""
        return self._warm

    def become(self, who: dict[str, Any]) -> None:
        """Tell it which rank it is; one that has just died shows by its pidfd."""
        with contextlib.suppress(OSError):
            self._link.setblocking(True)
            self._link.sendall(json.dumps(who).encode() + b"\n")

    def link(self) -> int:
        """Return the descriptor on which it says that it is warm."""
        return self._link.fileno()

    @property
    def has_ended(self) -> bool:
        """Whether it is to be buried."""
        return is_ready(self.pidfd)

    def bury(self) -> None:
        """Wait for its end."""
        self._process.wait()
        os.close(self.pidfd)
        self._link.close()


class Spares:
    """All of them. One thread."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._waiting: list[Spare] = []
        self._replacing: dict[int, Spare] = {}

    @property
    def replacements(self) -> Iterable[Spare]:
        """The ranks that were spares."""
        return self._replacing.values()

    @property
    def warm(self) -> int:
        """How many could start at once."""
        return sum(spare.warm for spare in self._waiting)

    def keep(self, wanted: int) -> None:
        """Have that many, as far as there is memory for them."""
        while len(self._waiting) < wanted and free_memory() > _ROOM_BYTES:
            self._waiting.append(Spare(self._ranks, "spare"))

    def put(self, rank: int, connection: dict[str, Any]) -> int:
        """Make a warm spare, or a new process where there is none, that rank; return its process id."""
        self._end(rank)
        spare = next((each for each in self._waiting if each.warm), None)
        if spare is None:
            spare = Spare(self._ranks, "now")
        else:
            self._waiting.remove(spare)
        self._replacing[rank] = spare
        spare.become({"rank": rank, "size": self._ranks, "connection": connection})
        return spare.pid

    def descriptors(self) -> list[int]:
        """Return what to wait on for ``look``."""
        cold = [spare.link() for spare in self._waiting if not spare.warm]
        return cold + [spare.pidfd for spare in (*self._waiting, *self._replacing.values())]

    def look(self) -> None:
        """Bury those that have ended."""
        for spare in [each for each in self._waiting if each.has_ended]:
            self._waiting.remove(spare)
            spare.bury()
        for rank in [rank for rank, each in self._replacing.items() if each.has_ended]:
            self._replacing.pop(rank).bury()

    def _end(self, rank: int) -> None:
        """End who was to be that rank before and has not come so far."""
        if rank in self._replacing:
            before = self._replacing.pop(rank)
            kill(before.pid, signal.SIGKILL)
            before.bury()


def free_memory() -> int:
    """Return the bytes that could be had without swapping: of the machine, or of this container where that is less."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    machine = int(lines["MemAvailable"].split()[0]) << 10
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, int(limit) - int(used))
