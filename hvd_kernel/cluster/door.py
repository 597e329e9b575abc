"""How a kernel comes to a kept cluster: a socket in its private folder, where both ends see who the other is.

No key is written down anywhere: the supervisor hands it over to whoever has come through the door, and the system
itself says whose process that is.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvd_kernel.processes.channel.authentication import peer_of
from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready

DOOR = "door"
_WAITING = 8


class Visitor:
    """A kernel at the door, or behind it: the channel to it, its process id, and a descriptor that shows its end."""

    def __init__(self, channel: ControlChannel, pid: int) -> None:
        self.channel = channel
        self.pid = pid
        self.gone = os.pidfd_open(pid)

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        return is_ready(self.gone)

    def close(self) -> None:
        """Hang up."""
        self.channel.close()
        os.close(self.gone)


class Door:
    """The supervisor's side."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        with _near(folder) as path:
            Path(path).unlink(missing_ok=True)
            self._socket.bind(path)
            Path(path).chmod(0o600)
        self._socket.listen(_WAITING)

    def fileno(self) -> int:
        """Return the descriptor to wait on for ``visitor``."""
        return self._socket.fileno()

    def visitor(self) -> Visitor | None:
        """Return who has come; None where it is another user's process, or gone already."""
        there, _ = self._socket.accept()
        pid, user = peer_of(there)
        channel = ControlChannel(there, there, is_agent=True)
        if user == os.geteuid():
            try:
                return Visitor(channel, pid)
            except OSError:  # it has ended, or it lives in another container
                pass
        channel.close()
        return None


def knock(folder: Path) -> tuple[ControlChannel, int]:
    """Return the channel to the supervisor behind a folder's door, and its process id.

    Raises
    ------
    OSError
        Nobody is there, or it is another user's process.
    """
    there = socket.socket(socket.AF_UNIX)
    with _near(folder) as path:
        there.connect(path)
    pid, user = peer_of(there)
    if user != os.geteuid():
        raise PermissionError(f"{folder}: another user's process listens on its socket")
    return ControlChannel(there, there), pid


@contextmanager
def _near(folder: Path) -> Iterator[str]:
    """Give the door's path, however long the folder's is: a socket's may have 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}/{DOOR}"
    finally:
        os.close(descriptor)
