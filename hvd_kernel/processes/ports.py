"""Ports that stay ours from the moment they are chosen.

A socket that is bound with SO_REUSEADDR and does not listen: the system gives the port to nobody who asks for any, and
to everybody who asks for this one in the same way, as the core and ZeroMQ do. ipyparallel asks the system for free
ports, lets go of them, and binds them later: two clusters that start at once then choose the same now and again.
"""

from __future__ import annotations

import socket

_kept: list[socket.socket] = []


def bound() -> socket.socket:
    """Return a socket that keeps a free port from others while it is open; nobody can connect to it."""
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("", 0))
    return keeper


def reserve(n: int) -> list[int]:
    """Return n free ports, which nobody else is given as long as this process lives."""
    fresh = [bound() for _ in range(n)]
    _kept.extend(fresh)
    return [keeper.getsockname()[1] for keeper in fresh]
