"""Agents that MPI or a cluster engine (cluster_engine.py) starts, one per rank: they connect to the launcher.

With MPI:

    hvdrun --pipe--> agent --> mpiexec --> mpi_agent (for one rank) --> rank
       ^---------------- socket ---------------'

Output does not go through mpiexec, which splits it anywhere, mixes ranks within a line, and may lose it at an abort.
The socket is abstract (this host only); with other hosts it is TCP. A client must first prove that it holds the run's
secret (authentication.py). MPI's variables and descriptors are passed to the rank, and each agent lives until the
launcher disconnects: hvdrun ends the ranks, as without MPI.
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
    """Starts the agents, and explains why they do not connect. ``ready`` is the number of connected agents."""

    def on_message(self, agent: AgentHandle, message: Message, ready: int, np: int) -> None:
        """Handle a message of another agent, which holds mpiexec; raise if that has ended."""

    def timeout_error(self, seconds: float, ready: int, np: int) -> ClusterError:
        """Explain that the agents did not connect in time."""

    def wrong_ranks_error(self, np: int) -> ClusterError:
        """Explain that other ranks were started than requested."""


class ConnectedAgent(AgentHandle):
    """An agent that has connected. Its messages are ignored until it has proved that it holds the secret."""

    def __init__(self, agents: Agents, connection: socket.socket, secret: str) -> None:
        super().__init__(agents, Host("localhost", 1), ProvenChannel(connection, secret))
        self._is_far = connection.family == socket.AF_INET
        self.loss = _LOST

    @property
    def rank(self) -> int:
        """Return its rank, after its hello."""
        return int(self.hello["rank"])

    def on_hello(self, hello: Hello) -> None:
        """Record its first message."""
        super().on_hello(hello)
        if self._is_far:
            self.host = Host(self.hello["name"], 1)

    def release(self) -> None:
        """Disconnect: all ranks have exited."""
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection, on which it exits with all of its processes. Idempotent."""
        if not self.gone:
            self.gone = True
            self._agents.loop.remove_reader(self.channel.fileno())
        self.channel.close()


class AgentListener:
    """Listening socket to which agents connect while the ranks start."""

    def __init__(self, agents: Agents, secret: str, addresses: list[str]) -> None:
        """Listen on TCP if other hosts have to reach one of ``addresses``, else within this host."""
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
            The starter ended before that, is too slow, or started other ranks than requested.
        """

        def receive(agent: AgentHandle, message: Message) -> None:
            if not isinstance(agent, ConnectedAgent):
                starter.on_message(agent, message, self.ready, np)

        self._agents.on_message = receive
        if not self._agents.run_until(lambda: self.ready >= np, seconds):
            raise starter.timeout_error(seconds, self.ready, np)
        ready = sorted(self._ready_agents(), key=lambda agent: agent.rank)
        if [agent.rank for agent in ready] != list(range(np)):
            raise starter.wrong_ranks_error(np)
        check_versions(ready)
        for agent in [*self._agents.every]:
            if isinstance(agent, ConnectedAgent) and agent not in ready:  # a client without a proof so far
                agent.hang_up()
                self._agents.every.remove(agent)
        return ready

    @property
    def ready(self) -> int:
        """Return the number of connected agents whose hello has arrived."""
        return len(self._ready_agents())

    def _ready_agents(self) -> list[ConnectedAgent]:
        connected = [agent for agent in self._agents.every if isinstance(agent, ConnectedAgent)]
        return [agent for agent in connected if agent.hello and not agent.gone]

    def _accept(self, connection: socket.socket) -> None:
        ConnectedAgent(self._agents, connection, self._secret)
