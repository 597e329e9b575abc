"""Attachment of a controller to a running supervisor: a unix socket in the supervisor's private folder.

No key is stored in a file: the supervisor sends it over this socket, and Linux tells each end the user of the other.
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
    """The controller of a supervisor: the channel to it, and its process."""

    def __init__(self, channel: ControlChannel, pid: int) -> None:
        self.channel = channel
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    @property
    def is_gone(self) -> bool:
        """True if its process has exited."""
        return is_ready(self.pidfd)

    def close(self) -> None:
        """Disconnect."""
        self.channel.close()
        os.close(self.pidfd)


def listen(folder: Path) -> socket.socket:
    """Create the listening socket of a supervisor in its folder."""
    listening = socket.socket(socket.AF_UNIX)
    with _near(folder) as path:
        Path(path).unlink(missing_ok=True)
        listening.bind(path)
        Path(path).chmod(0o600)
    listening.listen(_WAITING)
    return listening


def accept(listening: socket.socket) -> Controller | None:
    """Accept a connection; return None if it is another user's process, or gone already."""
    connection, _ = listening.accept()
    pid, user = peer_of(connection)
    channel = ControlChannel(connection, connection, is_agent=True)
    if user == os.geteuid():
        try:
            return Controller(channel, pid)
        except OSError:  # it has exited, or runs in another container
            pass
    channel.close()
    return None


def connect(folder: Path) -> tuple[ControlChannel, int]:
    """Connect to the supervisor of a folder; return the channel and its process id.

    Raises
    ------
    OSError
        If there is no supervisor, or it is another user's process.
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
    """Yield a short path of the socket: a socket's path is limited to 107 bytes, the folder's is not."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}/{NAME}"
    finally:
        os.close(descriptor)
