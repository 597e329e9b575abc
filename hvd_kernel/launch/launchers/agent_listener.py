"""Agents that others have started, one for each rank: they call the launcher, and are agents like all others then.

Others are MPI, and cluster engines (cluster_engine.py). With MPI:

    hvdrun --pipe--> agent --> mpiexec --> mpi_agent (for one rank) --> rank
       ^---------------- socket ---------------'

Why not through mpiexec: what it carries it cuts where it likes, mixes ranks within a line, and may lose at an abort.
The socket is this host's own, in no folder; with other hosts it is TCP. Whoever connects proves first that he holds the
run's secret (authentication.py). MPI's variables and descriptors stay the rank's, and mpiexec sees each agent live
until the launcher hangs up: it is hvdrun that ends the ranks, as without MPI.
"""

from __future__ import annotations

import socket
from typing import Protocol, Self

from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.agents import AgentHandle, Agents, check_versions
from hvd_kernel.launch.placement import Host
from hvd_kernel.processes.channel.authentication import ProvenChannel
from hvd_kernel.processes.channel.listening import Listening
from hvd_kernel.processes.channel.messages import Hello, Message

_LOST = "lost with the process that held it"


class Starter(Protocol):
    """Who has the agents started, and explains why they do not come."""

    def hear(self, agent: AgentHandle, message: Message, there: int, np: int) -> None:
        """Take a message of an agent that is not one of them; raise where it is the end."""

    def slow(self, seconds: float, there: int, np: int) -> ClusterError:
        """Explain that they have not come in time."""

    def others(self, np: int) -> ClusterError:
        """Explain that other ranks have come than were asked for."""


class ConnectedAgent(AgentHandle):
    """One of them. It is known once it has proved that it holds the secret; before that nothing it says counts."""

    def __init__(self, agents: Agents, connection: socket.socket, secret: str) -> None:
        super().__init__(agents, Host("localhost", 1), ProvenChannel(connection, secret))
        self._is_far = connection.family == socket.AF_INET
        self.loss = _LOST

    @property
    def rank(self) -> int:
        """The rank it brings, once it has said hello."""
        return int(self.hello["rank"])

    def greet(self, hello: Hello) -> None:
        """Take note of its first message."""
        super().greet(hello)
        if self._is_far:
            self.host = Host(self.hello["name"], 1)

    def release(self) -> None:
        """All ranks have ended: hang up."""
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection, by which it ends with all that it holds. Idempotent."""
        if not self.gone:
            self.gone = True
            self._agents.loop.remove_reader(self.channel.fileno())
        self.channel.close()


class AgentListener:
    """Listening socket to which agents connect while the ranks start."""

    def __init__(self, agents: Agents, secret: str, addresses: list[str]) -> None:
        """Listen: on TCP where hosts have to reach one of ``addresses``, else within this host."""
        self._agents, self._secret = agents, secret
        self._listening = Listening(agents.loop, "" if addresses else None, self._accept)
        self.address = self._listening.address(",".join(addresses))

    def __enter__(self) -> Self:
        self._listening.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def wait(self, starter: Starter, np: int, seconds: float) -> list[ConnectedAgent]:
        """Wait until the agent of every rank has connected and said hello; return them in rank order.

        Raises
        ------
        ClusterError
            Who starts them ended before that, is too slow, or started other ranks than it was asked for.
        """

        def receive(agent: AgentHandle, message: Message) -> None:
            if not isinstance(agent, ConnectedAgent):
                starter.hear(agent, message, self.there, np)

        self._agents.on_message = receive
        if not self._agents.run_until(lambda: len(self._ready()) >= np, seconds):
            raise starter.slow(seconds, self.there, np)
        there = sorted(self._ready(), key=lambda agent: agent.rank)
        if [agent.rank for agent in there] != list(range(np)):
            raise starter.others(np)
        check_versions(there)
        for agent in [*self._agents.every]:
            if isinstance(agent, ConnectedAgent) and agent not in there:  # it has proved nothing so far
                agent.hang_up()
                self._agents.every.remove(agent)
        return there

    @property
    def there(self) -> int:
        """How many have said hello, and have not gone."""
        return len(self._ready())

    def _ready(self) -> list[ConnectedAgent]:
        connected = [agent for agent in self._agents.every if isinstance(agent, ConnectedAgent)]
        return [agent for agent in connected if agent.hello and not agent.gone]

    def _accept(self, connection: socket.socket) -> None:
        ConnectedAgent(self._agents, connection, self._secret)
