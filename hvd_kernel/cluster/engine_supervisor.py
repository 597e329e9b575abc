"""Supervisor of a notebook's cluster whose ranks an engine starts: ``python -m`` this, started by launcher.py.

    kernel --pidfd, control channel--> supervisor <--sockets-- agents, one for each rank, in the engine's processes

It is ipyparallel's controller, like the supervisor of mpiexec's ranks (cluster/supervisor.py), and the launcher of the
agents. It exits with the kernel; agents and ranks exit with it, on every host.

The agents connect, receive their rank numbers, and start one process each:

    engine's process --stdin--> agent (processes/rank_agent.py) --PDEATHSIG--> rank
                                  ^-- socket: proof, StartRanks, Introduce, RankExited --> supervisor

An agent outlives its rank's process, and starts the process that replaces it. The engine may replace a lost agent by
another one with the same index.

Terms.
  index   the number of an engine's process; ranks are numbered host by host, starting with the host of index 0
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hvd_kernel.cluster import registration
from hvd_kernel.cluster.supervisor import ControllerHost, host
from hvd_kernel.processes.channel import messages as m
from hvd_kernel.processes.channel.attachment import Controller
from hvd_kernel.processes.channel.authentication import Listening, ProvenChannel, controller_key
from hvd_kernel.processes.event_loop import EventLoop
from hvd_kernel.processes.mps.decision import sharing
from hvd_kernel.settings.network import reached
from hvd_kernel.version import __version__

_LOOPBACK = "127.0.0.1"
_LOST = "it was lost with the process of {engine} that held it"
_OTHER = "its host {host} has hvd_kernel {theirs}, this one has {ours}: install the same version on both"
_RANK = ("-P", "-m", "hvd_kernel.worker", "held")

Send = Callable[[m.Message], None]


class RankAgent:
    """One agent. All its messages are ignored until it has proved that it knows the secret."""

    def __init__(self, connection: socket.socket, secret: str) -> None:
        self.channel = ProvenChannel(connection, secret)
        self.descriptor = self.channel.fileno()
        self.card: dict[str, Any] = {}
        self.runs = False  # a process of its rank is running
        is_far = connection.family == socket.AF_INET
        self.calls_at = connection.getsockname()[0] if is_far else _LOOPBACK  # this host's address as seen by the agent

    @property
    def index(self) -> int:
        """Number of the engine's process that the agent runs in."""
        return int(self.card["rank"])


class RankAgents:
    """The agents of a cluster's ranks. For the thread of the loop only.

    Parameters
    ----------
    loop
        Calls back when an agent sends a message.
    plan
        ``ranks``: their number; ``engine``: its name; ``address``: of this host, for agents to connect to, "" if all
        agents are on this host; ``env``: variables of the ranks.
    send
        Sends messages to the kernel: RankExited, RankKilled before it, StartFailed, Notice.
    """

    def __init__(self, loop: EventLoop, secret: str, plan: Mapping[str, Any], send: Send) -> None:
        self._loop, self._secret, self._send = loop, secret, send
        self._np, self._engine, self._env = int(plan["ranks"]), str(plan["engine"]), dict(plan["env"])
        self._connection: dict[str, Any] = {}  # connection information of the controller, for ranks
        self._agents: list[RankAgent] = []
        self._by_index: dict[int, RankAgent] = {}  # agents that have sent a hello
        self._rank_of: dict[int, int] = {}  # index -> rank, once all agents have connected
        self._awaited: set[int] = set()  # ranks to start when their agent connects
        self._end_reason = ""  # set once no more agents will connect
        self._run = secrets.token_hex(16)  # identifies the MPS daemon that the agents of a host share
        at = str(plan["address"])
        self._listening = Listening(loop, at or None, self._accept)
        self.address = self._listening.address(at)
        self._listening.open()

    @property
    def running(self) -> bool:
        """True while the process of any rank runs."""
        return any(agent.runs for agent in self._agents)

    def connect(self, connection: Mapping[str, Any]) -> None:
        """Store the controller's connection information, and start the ranks once all agents have connected."""
        self._connection = {name: value for name, value in connection.items() if name != "key"}
        self._start_all()

    def replace(self, ranks: Iterable[int]) -> None:
        """Start replacement processes for ranks, each as soon as its agent is connected."""
        for rank in ranks:
            agent = self._agent(rank)
            if agent is not None:
                self._start(rank, agent)
            elif self._end_reason:
                self._send(m.StartFailed(rank, self._end_reason))
            else:
                self._awaited.add(rank)

    def end(self, rank: int, grace: float) -> None:
        """Stop the process of one rank."""
        if agent := self._agent(rank):
            agent.channel.send(m.StopRank(rank, grace))

    def engine_ended(self, reason: str) -> None:
        """Record that no more agents will connect, and report the ranks that cannot start."""
        self._end_reason = f"{self._engine} has ended{f': {reason}' if reason else ''}"
        if not self._rank_of:
            up = len(self._by_index)
            self._send(m.StartFailed(0, f"{self._end_reason} (when {up} of {self._np} ranks were up)"))
        for rank in self._awaited:
            self._send(m.StartFailed(rank, self._end_reason))

    def stop(self, grace: float) -> None:
        """Terminate all ranks."""
        for agent in self._agents:
            if agent.runs:
                agent.channel.send(m.Stop(grace))

    def close(self) -> None:
        """Close all connections, at which every agent exits with its rank."""
        self._listening.close()
        for agent in [*self._agents]:
            self._disconnect(agent)

    def _accept(self, connection: socket.socket) -> None:
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        agent = RankAgent(connection, self._secret)
        self._agents.append(agent)
        self._loop.add_reader(agent.descriptor, lambda: self._receive(agent))

    def _receive(self, agent: RankAgent) -> None:
        for message in agent.channel.receive():
            match message:
                case m.Hello(card):
                    self._greet(agent, card)
                case m.RankExited():
                    agent.runs = False
                    self._send(message)
                case m.RankKilled() | m.StartFailed() | m.Notice():
                    self._send(message)
                case m.Output(data=data):
                    os.write(sys.stderr.fileno(), data)  # the cluster's log
        if agent.channel.closed:
            self._lose(agent)

    def _greet(self, agent: RankAgent, card: dict[str, Any]) -> None:
        agent.card = card
        if card["version"] != __version__:
            mismatch = _OTHER.format(host=card["name"], theirs=card["version"], ours=__version__)
            self._send(m.StartFailed(agent.index, mismatch))
            return
        self._by_index[agent.index] = agent
        rank = self._rank_of.get(agent.index)
        if rank in self._awaited:
            self._awaited.discard(rank)
            self._start(rank, agent)
        self._start_all()

    def _start_all(self) -> None:
        """Assign the rank numbers and start the ranks, once the controller and all agents are connected."""
        if self._rank_of or not self._connection or len(self._by_index) < self._np:
            return
        host_of = {index: str(agent.card["host"]) for index, agent in self._by_index.items()}
        names = sorted(set(host_of.values()))
        first = names.index(host_of[0])
        order = names[first:] + names[:first]
        indices = sorted(host_of, key=lambda index: (order.index(host_of[index]), index))
        self._rank_of = {index: rank for rank, index in enumerate(indices)}
        for index, rank in self._rank_of.items():
            self._start(rank, self._by_index[index])

    def _start(self, rank: int, agent: RankAgent) -> None:
        cards = [other.card for other in self._by_index.values()]
        plan = m.StartRanks(
            command=[agent.card["python"], *_RANK],
            cwd=agent.card["cwd"],
            env=self._env,
            ranks=[m.RankPlan(rank, reads_stdin=True)],
            inherit_env=True,
            ranks_on_host=sum(card["machine"] == agent.card["machine"] for card in cards),
            mps_ranks=sharing(agent.card, cards),
            mps_run=self._run,
            stays=True,
        )
        is_alone = all(card["machine"] == cards[0]["machine"] for card in cards)
        address = _LOOPBACK if is_alone else reached(agent.card, cards) or str(agent.card["name"])
        where = {"interface": f"tcp://{agent.calls_at}", "location": agent.calls_at, "rendezvous": address}
        agent.runs = True
        agent.channel.send(plan)
        agent.channel.send(m.Introduce(rank, self._np, self._connection | where))

    def _agent(self, rank: int) -> RankAgent | None:
        return next((self._by_index.get(index) for index, number in self._rank_of.items() if number == rank), None)

    def _lose(self, agent: RankAgent) -> None:
        self._disconnect(agent)
        if agent.card and self._by_index.get(agent.index) is agent:
            del self._by_index[agent.index]
            rank = self._rank_of.get(agent.index)
            if agent.runs and rank is not None:
                agent.runs = False
                self._send(m.RankKilled(rank, _LOST.format(engine=self._engine)))
                self._send(m.RankExited(rank, -9))

    def _disconnect(self, agent: RankAgent) -> None:
        self._loop.remove_reader(agent.descriptor)
        agent.channel.close()
        self._agents.remove(agent)


_GRACE_S = 1.5  # for ranks to exit after SIGTERM
_KEPT = "{engine} ends them with this kernel, which has asked it for them: leave --keep (and HVD_KEEP) out"


class EngineSupervisor(ControllerHost):
    """Owns the agents' connections and the private folder."""

    def __init__(self, plan: dict[str, Any], kernel: Controller) -> None:
        super().__init__(plan, kernel)
        secret = secrets.token_hex(32)
        self.key = controller_key(secret)
        self._agents = RankAgents(self.loop, secret, plan, self.send)
        self.handlers |= {
            m.ReplaceRanks: self._replace,
            m.StopRank: lambda message: self._agents.end(message.rank, message.grace),
            m.EngineEnded: lambda message: self._agents.engine_ended(message.reason),
            m.Detach: lambda _: self.send(m.DetachFailed(_KEPT.format(engine=plan["engine"]))),
        }
        self.send(m.Inviting(self._agents.address, secret))

    def connected(self, client: dict[str, Any], engine: dict[str, Any]) -> None:
        """Send the controller's connection information to the kernel and to the ranks."""
        self.send(m.Connected(client))
        self._agents.connect({"folder": str(self.folders[0]), **engine})

    def terminate(self) -> None:
        """Terminate the ranks."""
        self._agents.stop(_GRACE_S)

    def on_progress(self) -> None:
        """Exit once all ranks have exited, if the cluster is being stopped."""
        if self.is_stopping and not self._agents.running:
            self.loop.stop()

    def close(self) -> None:
        """Close the agents' connections, and stop everything else."""
        self._agents.close()
        super().close()

    def _replace(self, request: m.ReplaceRanks) -> None:
        registration.expect(request.ranks)
        self.send(m.RanksJoining(dict.fromkeys(request.ranks, 0)))  # their pids are known when they register
        self._agents.replace(request.ranks)


if __name__ == "__main__":
    host(EngineSupervisor)
