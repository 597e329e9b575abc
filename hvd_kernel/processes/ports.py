"""Ports that stay reserved from the moment they are chosen.

While a socket is bound with SO_REUSEADDR and does not listen, Linux assigns its port to no process that requests any
free port, but lets every process bind it that requests this very port with SO_REUSEADDR, as the core and ZeroMQ do.
ipyparallel takes free ports from the system, closes them, and binds them later: two clusters that start at the same
time would sometimes choose the same.
"""

from __future__ import annotations

import socket

_reserved: list[socket.socket] = []


def bound(address: str = "", port: int = 0) -> socket.socket:
    """Return a socket that reserves a port, by default a free one, while it is open; it does not accept connections.

    Raises
    ------
    OSError
        The port is in use.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reserved.bind((address, port))
    except OSError:
        reserved.close()
        raise
    return reserved


class ReservedPort:
    """One reserved port at a time."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def take(self, address: str = "") -> int:
        """Reserve and return a free port, and release the previous one."""
        self.release()
        self._socket = bound(address)
        return int(self._socket.getsockname()[1])

    def release(self) -> None:
        """Release the port."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def reserve_port(port: int) -> bool:
    """Reserve a port for the lifetime of this process; return False if it is in use."""
    try:
        _reserved.append(bound(port=port))
    except OSError:
        return False
    return True


def reserve(n: int) -> list[int]:
    """Reserve and return n free ports for the lifetime of this process."""
    fresh = [bound() for _ in range(n)]
    _reserved.extend(fresh)
    return [reserved.getsockname()[1] for reserved in fresh]
