"""Agents that MPI has started, one for each rank: they call the launcher, and are agents like all others from there on.

    hvdrun --pipe--> agent --> mpiexec --> mpi_agent (for one rank) --> rank
       ^---------------- socket ---------------'

Why not through mpiexec: what it carries it cuts where it likes, mixes ranks within a line, and may lose at an abort.
The socket is this host's own, in no folder; with other hosts it is TCP. Whoever calls proves first that he holds the
run's secret (authentication.py). MPI's variables and descriptors stay the rank's, and mpiexec sees each agent live
until the launcher hangs up: it is hvdrun that ends the ranks, as without MPI.

Words.
  door    where callers are let in
  caller  an agent that has called
"""

from __future__ import annotations

import secrets
import socket
import time
from typing import Self

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import Agent, Crew, check_versions
from hvd_kernel.launch.launchers.mpiexec import Starter
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel.authentication import ProvenChannel
from hvd_kernel.processes.channel.messages import ChannelClosed, Hello, Message, Output, RankExited, StartFailed


class Caller(Agent):
    """One of them. It is known once it has proved that it holds the secret; before that nothing it says counts."""

    def __init__(self, connection: socket.socket, secret: str) -> None:
        super().__init__(Host("localhost", 1), ProvenChannel(connection, secret))
        self._is_far = connection.family == socket.AF_INET

    @property
    def rank(self) -> int:
        """The rank it brings, once it has said hello."""
        return int(self.hello["rank"])

    def greet(self, message: Message) -> None:
        """Take its hello."""
        if isinstance(message, Hello):
            self.hello = message.card
            if self._is_far:
                self.host = Host(self.hello["name"], 1)

    def release(self) -> None:
        """All ranks have ended: hang up."""
        self.end()

    def end(self) -> None:
        """Hang up, by which it ends with all that it holds."""
        self.gone = True
        self.channel.close()


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
            for agent, message in crew.received(deadline - time.monotonic(), self._listening.fileno()):
                if isinstance(agent, Caller):
                    agent.greet(message)
                else:
                    _check(message, starter, len(there), np)
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


def _check(message: Message, starter: Starter, there: int, np: int) -> None:
    """Note what mpiexec says; raise where it has ended."""
    match message:
        case Output():
            starter.hear(message.data, aloud=False)
        case RankExited():
            raise starter.failed(str(message.status), there, np)
        case StartFailed():
            raise starter.failed(message.why, there, np)
        case ChannelClosed():
            raise starter.failed("", there, np)
