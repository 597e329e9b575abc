"""Parent side of a spare process, which receives its messages over a socket pair, not by arguments or files.

    parent                                  spare (worker/standby.py)
    Preload: modules to import        ->    unless it determines them itself
                                      <-    Preloaded
    Introduce or RunProgram           ->    the rank to become, or the program to run

The messages are those of the control channel. A spare that has received neither exits when the channel closes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from hvd_kernel.processes.capacity import free_memory
from hvd_kernel.processes.channel.control_channel import ControlChannel
from hvd_kernel.processes.channel.messages import Message, Preloaded
from hvd_kernel.processes.child_process import ChildProcess

_ROOM_BYTES = 1 << 30
"""Memory that must be free to start a spare, which needs about a quarter of that with torch."""


class Spare:
    """One spare process. ``start`` starts it, with a descriptor as its stdin."""

    def __init__(self, start: Callable[[int], ChildProcess]) -> None:
        self.is_ready = False
        ours, theirs = socket.socketpair()
        self.channel = ControlChannel(ours, ours)
        with theirs:
            self.process = start(theirs.fileno())

    def send(self, message: Message) -> None:
        """Send a message; errors are ignored, because the pidfd shows if the spare has exited."""
        self.channel.send(message)

    def poll(self) -> bool:
        """Read the messages that have arrived; return whether none will follow: it is ready, or has closed."""
        self.is_ready = any(isinstance(message, Preloaded) for message in self.channel.receive())
        return self.is_ready or self.channel.closed


def has_room() -> bool:
    """Return whether there is memory for another spare."""
    return free_memory() > _ROOM_BYTES
