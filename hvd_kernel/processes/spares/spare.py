"""Spare process as its parent has it: what it is told comes over a socket pair, no argument and no file.

    parent                                  spare (worker/standby.py)
    a line of JSON: what to import    ->    only where it does not know that by itself
                                      <-    "warm": it has imported
    a line of JSON: who to be         ->

The end of the socket is the end of a spare that has not been told who to be.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvd_kernel.processes.child_process import ChildProcess

_ROOM_BYTES = 1 << 30
"""Left free, or no spare is started: it takes about a quarter of that with torch."""
_WORD_BYTES = 64


class Spare:
    """One process. ``start`` starts it, with a descriptor as its stdin."""

    def __init__(self, start: Callable[[int], ChildProcess]) -> None:
        self.is_ready = False
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = start(theirs.fileno())

    def tell(self, what: dict[str, Any]) -> None:
        """Tell it what to import, or who to be; one that has just ended shows by its pidfd."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(what).encode() + b"\n")

    def hear(self) -> None:
        """Read its message that it is ready, which has arrived."""
        with contextlib.suppress(ConnectionError):
            self.is_ready = self.socket.recv(_WORD_BYTES) != b""


def has_room() -> bool:
    """Tell whether there is memory for one more."""
    return free_memory() > _ROOM_BYTES


def free_memory() -> int:
    """Return the bytes that could be had without swapping: of the machine, or of this container where that is less."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    machine = int(lines["MemAvailable"].split()[0]) << 10
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, int(limit) - int(used))
