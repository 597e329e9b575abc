"""Listening socket for agents: TCP if they connect from other hosts, else an abstract name of this host."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

from hvd_kernel.processes.event_loop import EventLoop

_BACKLOG = 128


class Listening:
    """A listening socket, for the thread of the loop. Its peers are not authenticated.

    Parameters
    ----------
    loop
        Calls ``accept`` for each connection, from ``open`` to ``close``.
    host
        The address of this host to listen at, "" for all of them; None: only for processes of this host.
    accept
        Receives the connection, which is blocking.
    """

    def __init__(self, loop: EventLoop, host: str | None, accept: Callable[[socket.socket], object]) -> None:
        self._loop, self._accept = loop, accept
        is_here = host is None
        family, where = (socket.AF_UNIX, f"\0hvd-{secrets.token_hex(16)}") if is_here else (socket.AF_INET, (host, 0))
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind(where)
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        name = self._socket.getsockname()
        self._place = f"@{name[1:].decode()}" if is_here else f":{name[1]}"

    def address(self, hosts: str) -> str:
        """Return the address for agents: ``host,host:port``, or ``@name`` if it is only for this host."""
        return self._place if self._place.startswith("@") else hosts + self._place

    def open(self) -> None:
        """Accept connections from now on."""
        self._loop.add_reader(self._socket.fileno(), self._accept_next)

    def close(self) -> None:
        """Stop listening."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _accept_next(self) -> None:
        connection, _ = self._socket.accept()
        connection.setblocking(True)
        self._accept(connection)
