"""Ports that stay ours from the moment they are chosen.

A socket that is bound with SO_REUSEADDR and does not listen: the system gives the port to nobody who asks for any, and
to everybody who asks for this one in the same way, as the core and ZeroMQ do. ipyparallel asks the system for free
ports, lets go of them, and binds them later: two clusters that start at once then choose the same now and again.
"""

from __future__ import annotations

import socket

_reserved: list[socket.socket] = []


def bound(address: str = "") -> socket.socket:
    """Return a socket that keeps a free port from others while it is open; nobody can connect to it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((address, 0))
    return reserved


class ReservedPort:
    """One free port at a time, kept from everybody who does not ask for this very one."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def take(self, address: str = "") -> int:
        """Return a free port, in place of the one before."""
        self.release()
        self._socket = bound(address)
        return int(self._socket.getsockname()[1])

    def release(self) -> None:
        """Keep it no longer."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def reserve(n: int) -> list[int]:
    """Return n free ports, which nobody else is given as long as this process lives."""
    fresh = [bound() for _ in range(n)]
    _reserved.extend(fresh)
    return [each.getsockname()[1] for each in fresh]
