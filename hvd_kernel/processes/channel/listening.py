"""Listening socket where agents connect: TCP where they come from other hosts, else a name that only this host has."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable

from hvd_kernel.processes.event_loop import EventLoop

_BACKLOG = 128


class Listening:
    """One such socket, of the thread of the loop. Who connects has proved nothing yet.

    Parameters
    ----------
    loop
        Calls ``accept`` when somebody connects, from ``open`` to ``close``.
    host
        The address of this host to listen at, "" for all of them; None: for this host's processes alone.
    accept
        Takes the connection, which blocks.
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
        """Return what agents are told: ``host,host:port``, or ``@name`` where only this host's processes may come."""
        return self._place if self._place.startswith("@") else hosts + self._place

    def open(self) -> None:
        """Take who connects from now on."""
        self._loop.add_reader(self._socket.fileno(), self._take)

    def close(self) -> None:
        """Take nobody any more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _take(self) -> None:
        connection, _ = self._socket.accept()
        connection.setblocking(True)
        self._accept(connection)
