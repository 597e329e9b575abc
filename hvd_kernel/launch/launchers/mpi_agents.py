"""Agents that MPI has started, one for each rank: they call the launcher, and are agents like all others from there on.

    hvdrun --pipe--> agent --> mpiexec --> mpi_rank (an agent for one rank) --> rank
       ^---------------- socket ---------------'

Why not through mpiexec: what it carries it cuts where it likes, mixes ranks within a line, and may lose at an abort.
The socket is this host's own, in no folder; with other hosts it is TCP. Whoever calls proves first that he holds the
run's secret (proof.py). MPI's variables and descriptors stay the rank's, and mpiexec sees each agent live until the
launcher hangs up: it is hvdrun that ends the ranks, as without MPI.

Words.
  door    where callers are let in
  caller  an agent that has called
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from typing import Self

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import Agent, Crew, check_versions
from hvd_kernel.launch.launchers.mpiexec import Starter
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes import authentication
from hvd_kernel.processes.frames import Frame, Kind

_CHUNK = 1 << 16


class Caller(Agent):
    """One of them. It is known once it has proved that it holds the secret; before that nothing it says counts."""

    def __init__(self, connection: socket.socket, secret: str) -> None:
        super().__init__(Host("localhost", 1), connection.fileno())
        self.known = False
        self._connection, self._secret = connection, secret
        self._mine, self._said = authentication.number(), b""
        self._tell(self._mine)

    @property
    def rank(self) -> int:
        """The rank it brings, once it has said hello."""
        return int(self.hello["rank"])

    def greet(self, frame: Frame | None) -> None:
        """Take its hello."""
        if frame is not None:
            self.hello = json.loads(frame.payload)
            if self._connection.family == socket.AF_INET:
                self.host = Host(self.hello["name"], 1)

    def hear(self, _fd: int) -> list[Frame]:
        """Return the frames that have come; notes its end."""
        try:
            data = self._connection.recv(_CHUNK)
        except OSError:  # a network has more ways to end it than a host
            data = b""
        if not self.known:
            self._introduce(data)
            return []  # it waits for our proof before it says more
        self.gone = not data
        return self._reader.feed(data)

    def _introduce(self, data: bytes) -> None:
        self._said += data
        numbers, shown = self._mine + self._said[: authentication.LENGTH], self._said[authentication.LENGTH :]
        self.known = authentication.holds(shown, self._secret, authentication.AGENT, numbers)
        self.gone = not data or (not self.known and len(shown) >= authentication.LENGTH)
        if self.gone:
            self._connection.close()
        elif self.known:
            self._tell(authentication.of(self._secret, authentication.LAUNCHER, numbers))

    def send(self, frame: Frame) -> None:
        """Tell it something; it may be gone, which the connection will say."""
        self._tell(frame.pack())

    def _tell(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError:
            return

    def release(self) -> None:
        """All ranks have ended: hang up."""
        self.end()

    def end(self) -> None:
        """Hang up, by which it ends with all that it holds."""
        self.gone = True
        self._connection.close()


class Door:
    """Lets callers in while the ranks start."""

    def __init__(self, secret: str, addresses: list[str]) -> None:
        """Listen: on TCP where hosts have to reach one of ``addresses``, else within this host."""
        self._secret = secret
        family, where = (socket.AF_INET, ("", 0)) if addresses else (socket.AF_UNIX, f"\0hvd-{secrets.token_hex(16)}")
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        self._listening.bind(where)
        self._listening.listen(128)
        self._listening.setblocking(False)
        name = self._listening.getsockname()
        self.address = f"{','.join(addresses)}:{name[1]}" if addresses else f"@{name[1:].decode()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def gather(self, crew: Crew, starter: Starter, np: int, seconds: float) -> list[Agent]:
        """Wait until the agent of every rank has called and said hello; return them in rank order.

        Raises
        ------
        ClusterError
            mpiexec ended before that, is too slow, or started other ranks than it was asked for.
        """
        deadline = time.monotonic() + seconds
        while len(there := [agent for agent in crew.agents if isinstance(agent, Caller) and agent.hello]) < np:
            if time.monotonic() > deadline:  # nobody comes late while this process is stopped
                raise starter.slow(seconds, len(there), np)
            for agent, frame in crew.heard(deadline - time.monotonic(), self._listening.fileno()):
                if isinstance(agent, Caller):
                    agent.greet(frame)
                elif frame is None or frame.kind in {Kind.EXIT, Kind.ERROR}:
                    raise starter.failed(b"" if frame is None else frame.payload, len(there), np)
                else:
                    starter.hear(frame.payload, aloud=False)
            crew.agents = [agent for agent in [*crew.agents, *self._let_in()] if not agent.gone]
        if sorted(agent.rank for agent in there) != list(range(np)):
            raise ClusterError(f"mpiexec did not start {np} rank(s), as -np says: leave -n and -np out of --mpi-args.")
        check_versions(there)
        for agent in crew.agents:
            if isinstance(agent, Caller) and agent not in there:  # a stranger, who has proved nothing yet
                agent.end()
        crew.agents = [agent for agent in crew.agents if not agent.gone]
        return [*sorted(there, key=lambda agent: agent.rank)]

    def _let_in(self) -> list[Caller]:
        callers: list[Caller] = []
        while True:
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                return callers
            connection.setblocking(True)
            callers.append(Caller(connection, self._secret))
