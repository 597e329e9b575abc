"""How a kernel comes to a kept cluster: a socket in its private folder, where both ends see who the other is.

No key is written down anywhere: the supervisor hands it over to whoever has come through the door, and the system
itself says whose process that is.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvd_kernel.processes.json_lines import Line, is_ready

DOOR = "door"
_WAITING = 8
_CREDENTIALS = struct.Struct("3i")  # pid, user, group


class Visitor:
    """A kernel at the door, or behind it: the line to it, its process id, and a descriptor that shows its end."""

    def __init__(self, line: Line, pid: int) -> None:
        self.line = line
        self.pid = pid
        self.gone = os.pidfd_open(pid)

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended."""
        return is_ready(self.gone)

    @property
    def has_spoken(self) -> bool:
        """Whether there is something to hear, if only that it has hung up."""
        return is_ready(self.line.fileno())

    def close(self) -> None:
        """Hang up."""
        self.line.close()
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
        pid, user, _ = _peer(there)
        line = Line(there, there)
        if user == os.geteuid():
            try:
                return Visitor(line, pid)
            except OSError:  # it has ended, or it lives in another container
                pass
        line.close()
        return None


def knock(folder: Path) -> tuple[Line, int]:
    """Return the line to the supervisor behind a folder's door, and its process id.

    Raises
    ------
    OSError
        Nobody is there, or it is another user's process.
    """
    there = socket.socket(socket.AF_UNIX)
    with _near(folder) as path:
        there.connect(path)
    pid, user, _ = _peer(there)
    if user != os.geteuid():
        raise PermissionError(f"{folder}: another user's process listens on its socket")
    return Line(there, there), pid


def _peer(connected: socket.socket) -> tuple[int, int, int]:
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(told)
    return pid, user, group


@contextmanager
def _near(folder: Path) -> Iterator[str]:
    """Give the door's path, however long the folder's is: a socket's may have 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}/{DOOR}"
    finally:
        os.close(descriptor)
