"""Attachment of a controller to a supervisor that runs already: a unix socket in the supervisor's private folder.

No key is written down anywhere: the supervisor hands it over on this socket, and the system itself tells both ends
whose process the other one is.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvd_kernel.processes.channel.control_channel import ControlChannel, is_ready
from hvd_kernel.processes.lifetime import peer_of

NAME = "control"
_WAITING = 8


class Controller:
    """Who tells a supervisor what to do: the channel to it, and its process."""

    def __init__(self, channel: ControlChannel, pid: int) -> None:
        self.channel = channel
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        return is_ready(self.pidfd)

    def close(self) -> None:
        """Hang up."""
        self.channel.close()
        os.close(self.pidfd)


def listen(folder: Path) -> socket.socket:
    """Return the listening socket of a folder's supervisor."""
    listening = socket.socket(socket.AF_UNIX)
    with _near(folder) as path:
        Path(path).unlink(missing_ok=True)
        listening.bind(path)
        Path(path).chmod(0o600)
    listening.listen(_WAITING)
    return listening


def accept(listening: socket.socket) -> Controller | None:
    """Return who has connected; None where it is another user's process, or gone already."""
    connection, _ = listening.accept()
    pid, user = peer_of(connection)
    channel = ControlChannel(connection, connection, is_agent=True)
    if user == os.geteuid():
        try:
            return Controller(channel, pid)
        except OSError:  # it has ended, or it lives in another container
            pass
    channel.close()
    return None


def connect(folder: Path) -> tuple[ControlChannel, int]:
    """Return the channel to the supervisor of a folder, and its process id.

    Raises
    ------
    OSError
        Nobody is there, or it is another user's process.
    """
    connection = socket.socket(socket.AF_UNIX)
    with _near(folder) as path:
        connection.connect(path)
    pid, user = peer_of(connection)
    if user != os.geteuid():
        raise PermissionError(f"{folder}: another user's process listens on its socket")
    return ControlChannel(connection, connection), pid


@contextmanager
def _near(folder: Path) -> Iterator[str]:
    """Give the socket's path, however long the folder's is: a socket's may have 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)
