"""Spare process as its parent has it: what it is told comes over a socket pair, no argument and no file.

    parent                                  spare (worker/standby.py)
    Preload: what to import           ->    only where it does not know that by itself
                                      <-    Preloaded
    Introduce or RunProgram           ->    who to be

The messages are those of the control channel. Its end is the end of a spare that has not been told who to be.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.channel.messages import Message, Preloaded
from hvd_kernel.processes.child_process import ChildProcess

_ROOM_BYTES = 1 << 30
"""Left free, or no spare is started: it takes about a quarter of that with torch."""


class Spare:
    """One process. ``start`` starts it, with a descriptor as its stdin."""

    def __init__(self, start: Callable[[int], ChildProcess]) -> None:
        self.is_ready = False
        ours, theirs = socket.socketpair()
        self.channel = ControlChannel(ours, ours)
        with theirs:
            self.process = start(theirs.fileno())

    def send(self, message: Message) -> None:
        """Tell it what to import, or who to be; one that has just ended shows by its pidfd."""
        self.channel.send(message)

    def poll(self) -> bool:
        """Read what has arrived; tell whether that is all it will say: it is ready, or has hung up."""
        self.is_ready = any(isinstance(said, Preloaded) for said in self.channel.receive())
        return self.is_ready or self.channel.closed


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
