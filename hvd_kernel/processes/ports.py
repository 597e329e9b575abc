"""Ports that stay ours from the moment they are chosen.

ipyparallel asks the system for free ports, lets go of them, and binds them later: two clusters that start at once then
choose the same now and again, and one of them does not come up. A socket that is bound and does not listen keeps the
system from giving the port to anybody, and lets ZeroMQ bind it, because both say SO_REUSEADDR.
"""

from __future__ import annotations

import socket

_kept: list[socket.socket] = []


def reserve(n: int) -> list[int]:
    """Return n free ports, which nobody else is given as long as this process lives."""
    return [_one() for _ in range(n)]


def _one() -> int:
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("", 0))  # bound, never listening: nobody can connect
    _kept.append(keeper)
    port: int = keeper.getsockname()[1]
    return port
